"""What elastic jobs have in common: nodes that come and go, and workers that report their steps."""

from typing import Any

from support.operator.operator_process import JOB, Story
from support.operator.replanning_story import VOLUME, report

COOLDOWN_S = 1800


def nodes(count: int) -> list[dict[str, Any]]:
    """Return that many nodes of eight GPUs."""
    labels = {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.count": "8"}
    return [{"metadata": {"name": f"node-{index}", "labels": labels}} for index in range(count)]


def training_on(count: int, most: int = 4, **spec: Any) -> Story:
    """Return the story of an elastic job that trains on that many nodes and reports its steps."""
    trainer = {"numNodes": most, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    elastic = {"elastic": {"minNodes": 1, **spec.pop("elastic", {})}}
    story = Story(suspend=True, trainer=trainer, experimental=elastic, **{**VOLUME, **spec})
    story.world.nodes = nodes(count)
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.running()
    report(story)
    story.later(60)
    return story


def joined(story: Story, count: int, after_s: float = COOLDOWN_S) -> Story:
    """Let nodes come, time pass, and the workers report."""
    story.world.nodes = nodes(count)
    story.later(after_s)
    report(story, step=6_000)
    story.later(10)
    return story

"""What elastic jobs have in common: nodes that come and go, and workers that report their steps."""

from typing import Any

from neuroshard_decisions import names
from support.operator.operator_process import JOB, Story
from support.operator.replanning_story import VOLUME, report

COOLDOWN_S = 1800


def nodes(count: int) -> list[dict[str, Any]]:
    """Return that many nodes of eight GPUs."""
    labels = {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.count": "8"}
    return [{"metadata": {"name": f"node-{index}", "labels": labels}} for index in range(count)]


def training_on(count: int, most: int = 4, *, quota: int | None = None, **spec: Any) -> Story:
    """Return the story of an elastic job that trains on that many nodes and reports its steps.

    With a quota it is in a queue.
    """
    trainer = {"numNodes": most, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    elastic = {"elastic": {"minNodes": 1, **spec.pop("elastic", {})}}
    story = Story(suspend=True, trainer=trainer, experimental=elastic, **{**VOLUME, **spec})
    story.world.nodes, story.world.quota = nodes(count), quota
    if quota is not None:
        story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.running()
    if quota is not None:
        settled_in_queue(story)
    report(story)
    story.later(60)
    return story


def settled_in_queue(story: Story) -> Story:
    """Let the workers wait for as long as they ask for all, then take what Kueue admits, and start."""
    for _ in range(2):
        story.later(40)
        story.do(names.PLANNER)
        story.bury()
    story.start_workers()
    return story


def joined(story: Story, count: int, after_s: float = COOLDOWN_S) -> Story:
    """Let nodes come, time pass, and the workers report."""
    story.world.nodes = nodes(count)
    story.later(after_s)
    report(story, step=6_000)
    story.later(10)
    return story

"""Specification of what the operator makes: each kind of child, byte for byte, as the file ``manifests.txt`` has it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuroshard_decisions import names
from support.golden import Golden, sections
from support.operator.operator_process import JOB, Story
from support.operator.replanning_story import AUTO, candidate, replaced, report
from support.operator.server_story import QueuedServerStory, ServerStory

HASH = re.compile(r"\b[0-9a-f]{8,64}\b")
MANIFESTS = Path(__file__).parent / "manifests.txt"


def replanned() -> Story:
    """Return the story of a job whose candidate plan is taken, and whose cost models are corrected by its steps."""
    story = candidate(Story(**{**AUTO, "experimental": {"profiler": {"correctBySteps": True}}}).running())
    report(story, step=9_000)
    replaced(story)
    report(story, step=12_000)
    story.later(60)
    return story.do(names.CALIBRATOR)


def restarted() -> Story:
    """Return the story of a job of one's own trainer and pod template, after a failure, on nodes of one kind."""
    template = {
        "metadata": {"labels": {"team": "ads"}, "annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"pool": "gpu"},
            "hostNetwork": True,
            "containers": [{"name": "trainer", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}],
        },
    }
    trainer = {
        "numNodes": 2,
        "command": ["train"],
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2, "memory": "8Gi"}},
    }
    story = Story(
        podTemplate=template, trainer=trainer, data={"persistentVolumeClaim": {"claimName": "data"}}
    ).running()
    story.fail(names.WORKER, 1)
    return story


def queued() -> Story:
    """Return the story of a job of one node that Kueue admits, planned with bundled cost models."""
    story = Story(
        trainer={"numNodes": 1}, profiler={"policy": "Never", "deviceType": "h100-80gb"}, launchPolicy="Manual"
    )
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.settle()
    return story.do(names.PLANNER)


def served() -> Story:
    """Return the story of a job with embedding servers, which has volumes."""
    return ServerStory(data={"persistentVolumeClaim": {"claimName": "data"}}).running()


def joined() -> Story:
    """Return the story of a job with embedding servers that Kueue queues."""
    return QueuedServerStory().running()


STORIES: dict[str, Callable[[], Story]] = {
    "replanned": replanned,
    "restarted": restarted,
    "queued": queued,
    "served": served,
    "joined": joined,
}


def test_every_child_is_made_as_it_is_kept(golden: Golden) -> None:
    """The last of each role in the first story, and the Kubernetes Jobs of the others, without files and hashes."""
    texts: dict[str, str] = {}
    for title, story in STORIES.items():
        last = {(each["kind"], each["metadata"]["labels"][names.ROLE_LABEL]): each for each in story().world.created}
        shown = [made for (kind, _), made in sorted(last.items()) if kind in {"Job", names.JOB_SET} or not texts]
        texts[title] = "\n".join(map(_text, shown))

    golden(MANIFESTS, sections(texts))


def _text(made: dict[str, Any]) -> str:
    """Return a child without its files, hashes, and what the API server adds."""
    added = {"uid", "resourceVersion", "creationTimestamp"}
    metadata = {key: value for key, value in made["metadata"].items() if key not in added}
    data = {part: sorted(made[part]) for part in ("data", "binaryData") if part in made}
    return HASH.sub("#", json.dumps({**made, **data, "metadata": metadata, "status": None}, sort_keys=True))

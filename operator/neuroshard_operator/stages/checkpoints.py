"""Whether the training outlives its pods, for the condition CheckpointsKept. Changes nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from neuroshard_api.job.training import CHECKPOINTS_PATH

from neuroshard_operator.children.workers import CHECKPOINTS_VOLUME
from neuroshard_operator.conditions import ConditionType, ConditionUpdate, Reason
from neuroshard_operator.context import Context
from neuroshard_operator.stages.result import condition


def checkpoints_kept(context: Context) -> tuple[ConditionUpdate, ...]:
    """Return whether checkpoints are on a volume; nothing for one's own trainer, which may keep them elsewhere."""
    checkpoint = context.spec.checkpoint
    kind = ConditionType.CHECKPOINTS_KEPT
    if checkpoint.persistent_volume_claim is not None or _is_mounted(context):
        seconds = checkpoint.interval_seconds
        often = "and no time limit between checkpoints" if seconds is None else f"at least every {seconds} s"
        return (condition(kind, Reason.CHECKPOINT_VOLUME, f"checkpoints outlive the pods, {often}", holds=True),)
    if context.spec.trainer.command:
        return ()
    message = (
        "checkpoints die with the pods: a failure, drain or preemption starts the training over; "
        "hint: set spec.checkpoint.persistentVolumeClaim"
    )
    return (condition(kind, Reason.NO_CHECKPOINT_VOLUME, message, holds=False),)


def _is_mounted(context: Context) -> bool:
    """Whether the pod template brings the volume, or mounts another one in its place."""
    template = context.spec.pod_template.spec
    named = any(each.get("name") == CHECKPOINTS_VOLUME for each in _entries(template, "volumes"))
    mounts = (mount for each in _entries(template, "containers") for mount in _entries(each, "volumeMounts"))
    return named or any(mount.get("mountPath") == CHECKPOINTS_PATH for mount in mounts)


def _entries(parent: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list; the API server rejects what is not one."""
    found = parent.get(key)
    return (each for each in (found if isinstance(found, list) else []) if isinstance(each, Mapping))

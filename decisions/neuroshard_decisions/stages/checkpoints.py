"""Whether the training outlives its pods, for the warning NoCheckpointVolume. Changes nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from neuroshard_api.job.training import CHECKPOINTS_PATH

from neuroshard_decisions.conditions import Reason, WarningUpdate, warnings_among
from neuroshard_decisions.context import Context
from neuroshard_decisions.names import CHECKPOINTS_VOLUME


def keeps_checkpoints(context: Context) -> bool:
    """Return whether checkpoints are known to outlive the workers: on a volume, or on one machine."""
    if context.rules.keeps_checkpoints:
        return True
    return context.spec.checkpoint.persistent_volume_claim is not None or _is_mounted(context)


def no_checkpoint_volume(context: Context) -> tuple[WarningUpdate, ...]:
    """Return a warning where checkpoints are on no volume; a trainer of one's own may keep them elsewhere."""
    message = (
        "checkpoints die with the pods: a failure, drain or preemption starts the training over; "
        "hint: set spec.checkpoint.persistentVolumeClaim"
    )
    found = {} if keeps_checkpoints(context) or context.spec.trainer.command else {Reason.NO_CHECKPOINT_VOLUME: message}
    return warnings_among((Reason.NO_CHECKPOINT_VOLUME,), found)


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

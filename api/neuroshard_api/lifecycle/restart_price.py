"""What a job does to learn the price of a restart. Pure functions."""

from collections.abc import Sequence

from neuroshard_api.documents.drift_report import DriftChange, SlowdownCause
from neuroshard_api.job.replanning import ReplanningMode

_RESTARTED_FOR = frozenset({SlowdownCause.INPUTS_DRIFTED})
_LEFT_FOR = frozenset({SlowdownCause.DEVICE_SLOW, SlowdownCause.NODE_SLOW})


def is_checkpoint_due(
    mode: ReplanningMode,
    changes: Sequence[DriftChange],
    *,
    checkpoint_ms: float | None,
    avoids_slow_nodes: bool,
    keeps_checkpoints: bool,
) -> bool:
    """Return whether the workers write a checkpoint whose duration the price of a restart lacks.

    A restart begins with a checkpoint, so that it costs a job nothing that would be restarted; without its duration a
    decision could never be taken where checkpoints are not due by themselves.

    Args:
        mode: of the job. Only Auto restarts by itself.
        changes: causes that the last drift report named.
        checkpoint_ms: duration of the last checkpoint of this start. None: there was none.
        avoids_slow_nodes: whether the job's workers leave slow nodes.
        keeps_checkpoints: whether checkpoints outlive the workers. If not, a restart begins from the start, and none is
            decided.
    """
    if mode is not ReplanningMode.AUTO or checkpoint_ms is not None or not keeps_checkpoints:
        return False
    answered = _RESTARTED_FOR | _LEFT_FOR if avoids_slow_nodes else _RESTARTED_FOR
    return any(change.cause in answered for change in changes)

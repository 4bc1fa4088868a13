"""The passes of a dense part, predicted and measured, as rows of a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.step_report import StepReport


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseTimes:
    """One row. Times are in milliseconds of a step."""

    name: str
    compute_ms: float
    """Forward and backward pass."""
    collectives_ms: float
    """Collectives that both passes wait for."""
    source: str

    @property
    def total_ms(self) -> float:
        """All of it."""
        return self.compute_ms + self.collectives_ms


def dense_times(plan: Plan, steps: StepReport | None) -> Sequence[DenseTimes]:
    """Return the predicted times, and the measured ones of the slowest rank; what is not known is left out.

    Args:
        plan: whose dense part may be counted.
        steps: measured under it. None: nothing was.
    """
    cost = plan.dense_cost
    rows = []
    if cost is not None:
        rows.append(
            DenseTimes(
                name="predicted",
                compute_ms=cost.compute_ms + (cost.other_ms or 0.0) + (cost.copies_ms or 0.0),
                collectives_ms=cost.exposed_ms,
                source=cost.source,
            )
        )
    timed = [] if steps is None else [rank for rank in steps.ranks if rank.dense_passes_ms is not None]
    if steps is not None and timed:
        slowest = max(timed, key=lambda rank: rank.dense_passes_ms or 0.0)
        bound = slowest.host_bound
        waits = bound is not None and bound.binds("dense_forward", "dense_backward", "dense_collectives")
        rows.append(
            DenseTimes(
                name=f"measured, rank {slowest.rank}{', waiting for the host included' if waits else ''}",
                compute_ms=(slowest.dense_forward_ms or 0.0) + (slowest.dense_backward_ms or 0.0),
                collectives_ms=(slowest.dense_collectives_ms or 0.0) - (slowest.dense_peer_wait_ms or 0.0),
                source=steps.source,
            )
        )
    return rows

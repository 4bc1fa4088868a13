"""The same tables at other batch sizes or on other devices: speed and memory of a plan for each. Changes no plan."""

from dataclasses import dataclass

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.searches import Search


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedPlan:
    """What the plan at a batch size comes to. Times are predicted, those of a dense part simulated."""

    embedding_ms: float
    """Embedding part of a step."""
    dense_ms: float | None
    """Of the counted dense part. None: it was not counted."""
    host_ms: float | None
    """What the host needs for a step. None: it has no price."""
    samples_per_second: float
    """Of all devices: the batch over the whole step, as if nothing of the embedding part hid behind the dense part."""
    memory_bytes: int
    """Ledger of the fullest device, reserve included."""
    capacity_bytes: int
    """Memory of that device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """One batch size: its plan, or the reason that there is none."""

    samples_per_device: int
    plan: SizedPlan | None = None
    problem: str | None = None
    """None where there is a plan."""


def at_batch_size(request: PlanRequest, *, search: Search) -> BatchSize:
    """Return the result of a request at its own batch size.

    Args:
        request: what is planned.
        search: finds the plan of a request.

    Raises:
        RequestError: as the search does. A batch size at which nothing fits is not an error.
    """
    samples = request.batch_size_per_device
    try:
        plan = search(request)
    except InfeasibleError as error:
        return BatchSize(samples_per_device=samples, problem=str(error))
    return BatchSize(samples_per_device=samples, plan=sized_plan(plan))


def sized_plan(plan: Plan) -> SizedPlan:
    """Return speed and memory of a plan."""
    fullest = max(plan.memory, key=lambda each: each.used_bytes / each.capacity_bytes)
    dense_ms = None if plan.dense_cost is None else plan.dense_cost.total_ms
    return SizedPlan(
        embedding_ms=plan.predicted.total_ms,
        dense_ms=dense_ms,
        host_ms=None if plan.step is None else plan.step.host.total_ms,
        samples_per_second=plan.samples_per_second,
        memory_bytes=fullest.used_bytes,
        capacity_bytes=fullest.capacity_bytes,
    )

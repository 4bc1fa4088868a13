"""What would help: what a plan would gain by each permission that its request lacks.

A promise takes no search. Under a lever, the best plan is expected to be as far above its lower bound as this plan is
above its own: what keeps a plan from its bound, cuts that cost and devices that are uneven, is mostly due to the tables
and stays. So the promise is the plan's cost, times the lower bound with the lever over that without it. Levers that do
not save more than the cost models can distinguish, and than the promises are wrong by, are not named.
"""

from collections.abc import Iterator
from typing import NamedTuple

from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.levers import Lever, LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.stored_types import with_types
from neuroshard_api.documents.tables import DataType
from neuroshard_api.sharding.kinds import ShardingType

from neuroshard_planner.choices.means_by_rows import bound_of_choices_ms
from neuroshard_planner.choices.trials import least_gain
from neuroshard_planner.choices.wire_types import refusal_of_all
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.problem.cost_model import CostModel

PROMISE_ERROR = 0.05
"""Of a step: below it a promise may have the wrong sign (`benchmarks/promises.py`)."""


class LeverRequest(NamedTuple):
    """A lever and the request with it."""

    name: LeverName
    text: str
    request: PlanRequest
    option: str
    field: str


def with_levers(plan: Plan, *, costs: CostModel) -> Plan:
    """Return the plan with the levers that would help, those that save most first.

    None are named for plans of baselines, and for groups of devices, whose bound is that of all groups.

    Args:
        plan: of any request.
        costs: those that the plan was made with.
    """
    if plan.algorithm is not Algorithm.NEUROSHARD or plan.replication is not None or not plan.lower_bound_ms:
        return plan
    found = sorted(_worthwhile(plan, costs), key=lambda each: -each.saved_share)
    return plan.model_copy(update={"levers": tuple(found)}) if found else plan


def questions(plan: Plan) -> Iterator[LeverRequest]:
    """Yield the levers that the plan's request may be given, each with the request that has nothing left to choose."""
    request = plan.request
    plain = request.model_copy(update={"communication": None, "gradient_choices": None})
    if request.wire is None and request.communication is None and request.memory.output_data_type is DataType.FP32:
        # Not FP16 where there is BF16: without a scale, gradients of a mean loss become 0.
        for kind in (WireType.BF16, WireType.FP16):
            types = WireTypes(forward=kind, backward=kind)
            if refusal_of_all(request) is None and request.wire_problem(types) is None:
                yield LeverRequest(
                    LeverName.WIRE_TYPES,
                    f"pooled embeddings and their gradients travel in {kind}",
                    plain.model_copy(update={"wire": types}),
                    f"--wire-forward {kind} --wire-backward {kind}",
                    f"spec.training.communication: {{policy: Auto, embeddings: {{forward: [{kind}], "
                    f"backward: [{kind}]}}}}",
                )
                break
    narrow = {
        table.name: DataType.FP16
        for table, placed in zip(request.tables.tables, plan.tables, strict=True)
        if table.data_type is DataType.FP32 and placed.sharding_type is not ShardingType.DATA_PARALLEL
    }
    if narrow and not request.constraints.has_data_types:
        yield LeverRequest(
            LeverName.STORED_TYPES,
            f"{len(narrow)} tables are stored in FP16, which changes results",
            plain.model_copy(update={"tables": with_types(request.tables, narrow)}),
            "--data-types FP32,FP16",
            "spec.planner.dataTypes: [FP32, FP16]",
        )
    groups = request.tables.duplication_groups
    was_asked = any(each.name is ChoiceName.REPEATS for each in plan.choices or ())
    if groups and request.deduplicate is None and not was_asked:
        yield LeverRequest(
            LeverName.REPEATS,
            f"repeated lists of {', '.join(groups)} are left out",
            plain.model_copy(update={"deduplicate": groups}),
            "--deduplicate",
            "spec.data.deduplication: Auto",
        )


def promised_ms(plan: Plan, request: PlanRequest, *, costs: CostModel) -> float:
    """Return the predicted cost of the best plan of a request that differs from the plan's by a lever.

    Raises:
        PlannerError: nothing fits, or the request contradicts itself.
    """
    return plan.predicted.total_ms * bound_of_choices_ms(request, costs) / plan.lower_bound_ms


def _worthwhile(plan: Plan, costs: CostModel) -> Iterator[Lever]:
    least, total_ms = max(least_gain(plan), PROMISE_ERROR), plan.predicted.total_ms
    for each in questions(plan):
        try:
            found_ms = promised_ms(plan, each.request, costs=costs)
        except PlannerError:
            continue
        saved = 1 - found_ms / total_ms
        if saved > least:
            yield Lever(
                name=each.name,
                text=each.text,
                total_ms=found_ms,
                saved_share=saved,
                option=each.option,
                field=each.field,
            )

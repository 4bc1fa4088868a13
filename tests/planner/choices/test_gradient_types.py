"""Types of the dense part's gradients: chosen by price, refused with the numbers."""

from typing import Any

import pytest
from neuroshard_api.documents.dense_layout import DenseChoices, DensePolicy
from neuroshard_api.documents.dense_profile import DenseUnit
from neuroshard_api.documents.gradient_exchange import GradientChoices, GradientExchange, GradientType
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings
from neuroshard_api.documents.topology import Link
from neuroshard_planner.choices.gradient_types import GradientTypes
from neuroshard_planner.choices.trials import Trials
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_report.communication import gradients_line
from support.builders import dense_profile, device_type, request, tables, topology
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns
from support.planner.searches import planned

MEMBERS = tables(8, embedding_dim=128)
ALL = GradientChoices(types=tuple(GradientType), keep_percent=0.1)


def asked(num_parameters: int = 2**29, *, num_nodes: int = 4, per_node: int = 8, **fields: Any) -> PlanRequest:
    """Return a request whose dense part has little compute to hide its gradients' all-reduce."""
    unit = DenseUnit(
        module="over_arch",
        num_parameters=num_parameters,
        forward_flops=2**30,
        backward_flops=2**31,
        activation_bytes=2**20,
        input_bytes=2**20,
        output_bytes=2**19,
        transient_bytes=2**19,
    )
    weights = 4 * num_parameters
    return request(
        *MEMBERS,
        **{
            "topology": topology(num_nodes * per_node, num_nodes=num_nodes),
            "dense": dense_profile(
                *MEMBERS,
                units=(unit,),
                weights_bytes=weights,
                gradient_bytes=weights,
                optimizer_state_bytes=2 * weights,
            ),
            "gradient_choices": ALL,
            "search": SearchSettings(work_budget=200),
            **fields,
        },
    )


def test_gradients_travel_in_the_type_that_saves_most() -> None:
    """What was resolved has it; every other type has its price, and the reason why it was not chosen."""
    plan = planned(asked())

    found = plan.gradients
    assert found is not None
    by_type = {each.type: each for each in found.alternatives}
    assert list(by_type) == list(ALL.narrow)
    chosen = by_type[found.chosen]
    assert plan.resolved.gradients == ALL.exchange(found.chosen)
    assert chosen.refusal is None
    assert chosen.saved_ms == max(each.saved_ms or 0.0 for each in found.alternatives)
    assert all(each.refusal for each in found.alternatives if each is not chosen)
    assert found.exact_exposed_ms == pytest.approx(
        (chosen.exposed_ms or 0.0) + (chosen.codec_ms or 0.0) + (chosen.saved_ms or 0.0)
    )
    assert gradients_line(plan.resolved.gradients, found).startswith(f"{found.chosen} saves ")
    assert not plan_problems(plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_search_next_to_what_gradients_carry_does_not_lose_the_placement_in_hand() -> None:
    """Where that fits, and costs less than the one that is found."""
    choices = GradientChoices(types=(GradientType.THRESHOLD,), keep_percent=0.1)
    slow = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
    request = asked(gradient_choices=choices, topology=topology(32, num_nodes=4, inter_node=slow))
    costs = ExactCosts(request.topology.device)
    exact = planned(request.model_copy(update={"gradient_choices": None}))

    def poor(of: PlanRequest) -> Plan:
        together = [by_columns(each, (0, each.embedding_dim)) for each in of.tables.tables]
        return imported_plan(together, of, bundle=costs)

    plan = GradientTypes(request, Trials(costs, poor), search=poor).decided(exact)

    assert plan.request.gradients == choices.exchange(GradientType.THRESHOLD)
    assert plan.tables == exact.tables
    assert plan.predicted.total_ms == pytest.approx(exact.predicted.total_ms)


def test_rounded_gradients_take_half_the_collectives_and_two_passes() -> None:
    """Latencies stay as they are, and there is little compute to hide either."""
    plan = planned(asked(gradient_choices=GradientChoices(types=(GradientType.BF16,))))

    assert plan.gradients is not None
    (own,) = plan.gradients.alternatives
    exact_ms = plan.gradients.exact_exposed_ms
    assert exact_ms is not None
    assert own.exposed_ms is not None
    assert 0.5 * exact_ms < own.exposed_ms < 0.54 * exact_ms
    passes_ms = 1000 * 12 * 2**29 / (0.8 * plan.request.topology.device.memory_bandwidth_bytes_per_second)
    assert own.codec_ms is not None
    assert passes_ms < own.codec_ms < passes_ms + 5


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_parameters": 50_000_000}, "50,000,000 replicated parameters are below 100,000,000"),
        ({"dense": None}, "the dense part is not counted"),
        ({"num_nodes": 1, "per_node": 1}, "a single device exchanges nothing"),
        (
            {"topology": topology(4, device=device_type(name="cpu-test"))},
            "processes of one machine exchange through its memory",
        ),
        (
            {"dense_choices": DenseChoices(policy=DensePolicy.SHARD)},
            "no unit of the dense part is replicated; sharded ones reduce their gradients in FP32",
        ),
    ],
)
def test_types_that_cannot_help_are_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    """Gradients travel as they are, and the plan is the one without a choice."""
    wanted = asked(**fields)
    plan, exact = planned(wanted), planned(wanted.model_copy(update={"gradient_choices": None}))

    assert plan.gradients is not None
    assert plan.gradients.chosen is GradientType.FP32
    assert reason in (plan.gradients.reason or "")
    assert gradients_line(None, plan.gradients) == f"exact: {plan.gradients.reason}"
    assert all(reason in (each.refusal or "") for each in plan.gradients.alternatives)
    assert plan.model_copy(update={"gradients": None, "request": exact.request}).to_json() == exact.to_json()


def test_a_threshold_that_sends_more_than_an_all_reduce_is_refused_with_the_largest_share_that_does_not() -> None:
    """An all-gather receives what every other device keeps."""
    choices = GradientChoices(types=(GradientType.THRESHOLD,), keep_percent=10.0)
    plan = planned(asked(gradient_choices=choices))

    assert plan.gradients is not None
    (own,) = plan.gradients.alternatives
    assert own.refusal == "32 devices x 10 % kept receive more than an all-reduce moves; hint: keep at most 5.2 %"


@pytest.mark.parametrize("kind", [GradientType.BF16, GradientType.THRESHOLD])
def test_a_fixed_type_is_refused_where_every_unit_is_sharded(kind: GradientType) -> None:
    """The sentence has the type, a unit, and both remedies; with a unit that is replicated there is a plan."""
    sharded = DenseChoices(policy=DensePolicy.SHARD)
    wanted = asked(gradient_choices=None, gradients=GradientExchange(type=kind), dense_choices=sharded)

    with pytest.raises(InfeasibleError) as refused:
        planned(wanted)

    found = str(refused.value)
    assert found.startswith(f"gradients.type: {kind} is for gradients of replicated units")
    assert "(found 'over_arch')" in found
    assert "hint: replicate 'over_arch' by dense_choices.units" in found
    assert planned(wanted.model_copy(update={"dense_choices": None})).request.gradients is not None


@pytest.mark.parametrize("added_ms", [0.0, 1000.0])
def test_a_type_that_carries_must_save_the_least_gain_next_to_what_it_carries(added_ms: float) -> None:
    """A plan that costs more where the one in hand does not fit decides against the type, in numbers."""
    choices = GradientChoices(types=(GradientType.THRESHOLD,), keep_percent=1.0, least_gain_percent=2.0)
    slow = Link(bandwidth_bytes_per_second=5e9, latency_seconds=20e-6)
    wanted = asked(gradient_choices=None, topology=topology(32, num_nodes=4, inter_node=slow))

    def search(request: PlanRequest) -> Plan:
        found = planned(request)
        if not added_ms or request.gradients is None:
            return found
        cost = found.predicted.model_copy(update={"total_ms": found.predicted.total_ms + added_ms})
        no_room = request.model_copy(update={"constraints": Constraints(max_memory_bytes_per_device=1)})
        return found.model_copy(update={"predicted": cost, "request": no_room})

    permitted = wanted.model_copy(update={"gradient_choices": choices})
    choice = GradientTypes(permitted, Trials(ExactCosts(wanted.topology.device), search), search=search)
    exact = choice.written(choice.decided(search(wanted)))
    assert exact.gradients is not None
    (own,) = exact.gradients.alternatives

    assert (exact.gradients.chosen is GradientType.THRESHOLD) == (added_ms == 0)
    if added_ms:
        assert "the plan that fits next to what it carries costs " in (own.refusal or "")
        assert (own.refusal or "").endswith("below 2 %")


def test_gradients_that_are_carried_need_memory_for_them_and_for_a_copy() -> None:
    """Rounded ones need none that stays."""
    fixed = asked(gradient_choices=None)
    plans = {
        kind: planned(fixed.model_copy(update={"gradients": GradientExchange(type=kind)}))
        for kind in (GradientType.BF16, GradientType.THRESHOLD)
    }

    rounded, carried = (plans[kind].memory[0].dense_bytes for kind in plans)
    assert carried - rounded == 2 * 4 * 2**29

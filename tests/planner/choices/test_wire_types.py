"""Types on the wire: chosen by price, refused with the numbers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.communication import CommunicationChoices, WireType, WireTypes
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings
from neuroshard_api.documents.topology import Link
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_costs.exchanges import encoded_exchange
from neuroshard_planner.choices.wire_types import exchange_ms
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import simulated_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from support import builders
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.searches import planned

INT8 = WireTypes(forward=WireType.INT8, backward=WireType.FP16)
CHOICES = CommunicationChoices(forward=(WireType.FP16, WireType.INT8), backward=(WireType.FP16,))


def asked(num_devices: int = 16, num_nodes: int = 8, **fields: Any) -> PlanRequest:
    """Return a request whose exchange between nodes takes most of the step."""
    defaults = {
        "topology": builders.topology(num_devices, num_nodes=num_nodes),
        "batch_size_per_device": 8192,
        "communication": CHOICES,
        "search": SearchSettings(work_budget=2000),
    }
    return builders.request(*builders.tables(32, embedding_dim=128), **{**defaults, **fields})


def without_choice(request: PlanRequest, wire: WireTypes | None = None) -> PlanRequest:
    """Return the request with given types."""
    return request.model_copy(update={"communication": None, "wire": wire})


def test_a_plan_sends_the_permitted_types_that_save_most() -> None:
    """It says what each pair would have made of the exact plan, and its request is as it was asked."""
    plan = planned(asked())

    found = plan.communication
    assert found is not None
    assert (found.chosen, plan.resolved.wire) == (INT8, INT8)
    assert plan.request == asked()
    assert found.exact_ms == planned(without_choice(asked())).predicted.total_ms
    assert plan.predicted.total_ms < 0.9 * found.exact_ms
    by_types = {each.text: each for each in found.alternatives}
    assert len(by_types) == len(CHOICES.pairs)
    chosen = by_types[INT8.text]
    assert chosen.refusal is None
    assert chosen.saved_ms == max(each.saved_ms or 0.0 for each in found.alternatives)
    assert chosen.codec_ms
    assert 0 < chosen.codec_ms < (chosen.exchange_ms or 0.0)
    assert all(
        each.refusal == f"{INT8.text} saves {chosen.saved_ms:.3f} ms"
        for each in found.alternatives
        if each is not chosen
    )
    assert not plan_problems(plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_the_price_of_types_is_that_of_a_request_with_them() -> None:
    """On the exact plan's placement or that of the plan, whichever costs less; of the chosen ones that of the plan."""
    plan = planned(asked())
    assert plan.communication is not None
    exact = planned(without_choice(asked()))

    for each in plan.communication.alternatives:
        problem = Problem(without_choice(asked(), each.types), ExactCosts(exact.request.topology.device))
        placements = [placement_of(placed.tables, problem) for placed in (plan, exact)]
        simulated = min((simulated_cost(problem, every) for every in placements), key=lambda cost: cost.total_ms)
        step_ms = plan.communication.step_ms(each)

        assert step_ms == pytest.approx(simulated.total_ms, rel=2e-3)
        assert each.exchange_ms == pytest.approx(exchange_ms(simulated), rel=2e-3)
        if each.refusal is None:
            assert step_ms == pytest.approx(plan.predicted.total_ms, rel=1e-12)
            assert each.exchange_ms == pytest.approx(exchange_ms(plan.predicted), rel=1e-12)


def test_groups_of_devices_exchange_exactly_where_codecs_take_as_long() -> None:
    """Narrow types save most of the step over a slow link, and nothing within the nodes that groups leave it to."""
    slow = Link(bandwidth_bytes_per_second=1e9, latency_seconds=20e-6)
    request = asked(
        replication=ReplicationChoices(sync_every_steps=10_000),
        topology=builders.topology(16, num_nodes=8, inter_node=slow),
        constraints=Constraints(sharding_types=BY_COLUMNS),
    )

    plan = planned(request)

    found = plan.communication
    assert plan.replication is not None
    assert plan.resolved.wire is None
    assert found is not None
    assert found.chosen.is_exact
    assert "in groups of devices the all-to-alls take" in (found.reason or "")
    assert found.exact_ms == plan.predicted.total_ms
    for each in found.alternatives:
        step_ms = found.step_ms(each) or 0.0
        assert 0.98 * plan.predicted.total_ms < step_ms
        assert (each.exchange_ms or 0.0) < step_ms
        assert "below 2 %" in (each.refusal or "")
    assert plan.choices is not None
    by_name = {choice.name: choice.alternatives for choice in plan.choices}
    assert by_name[ChoiceName.DEVICE_GROUPS][-1].text.endswith("exact exchange")
    assert by_name[ChoiceName.DEVICE_GROUPS][-1].refusal is None
    assert not plan_problems(plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_largest_values_alone_are_sent_where_a_slow_link_is_worth_their_passes() -> None:
    """The fewest of those that are permitted; over a fast link the passes take more than they save."""
    top = (WireType.TOP32, WireType.TOP8)
    choices = CommunicationChoices(forward=(WireType.FP16, *top), backward=(WireType.FP16, *top))
    slow = Link(bandwidth_bytes_per_second=1e9, latency_seconds=20e-6)
    far = builders.topology(16, num_nodes=8, inter_node=slow)
    plans = [planned(asked(communication=choices, topology=far)), planned(asked(communication=choices))]

    chosen = [each.communication.chosen for each in plans if each.communication is not None]
    assert chosen[0] == WireTypes(forward=WireType.TOP8, backward=WireType.TOP8)
    assert chosen[1] == WireTypes(forward=WireType.FP16, backward=WireType.FP16)


def test_a_plan_without_a_choice_is_the_exact_plan_to_the_last_byte() -> None:
    """Where no types are permitted, they change nothing but the record of the decision."""
    none = CommunicationChoices()
    plan, exact = planned(asked(communication=none)), planned(without_choice(asked()))

    assert plan.communication is not None
    assert "only FP32 is permitted" in (plan.communication.reason or "")
    bare = plan.model_copy(update={"communication": None, "request": exact.request})
    assert bare.to_json() == exact.to_json()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topology": builders.topology(1)}, "a single device exchanges nothing"),
        (
            {"topology": builders.topology(4, device=builders.device_type(name="cpu-test"))},
            "processes of one machine exchange through its memory, which is faster than any codec on its cores",
        ),
        (
            {"batch_size_per_device": 1001, "communication": CommunicationChoices(forward=(WireType.INT8,))},
            "can be trained",
        ),
    ],
)
def test_types_that_cannot_help_are_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    """The plan is the exact one."""
    plan = planned(asked(**fields))

    assert plan.communication is not None
    assert plan.communication.chosen.is_exact
    assert plan.resolved.wire is None
    assert reason in (plan.communication.reason or "")


def test_a_gain_below_the_least_one_is_refused_with_both_numbers() -> None:
    """A request for 90 % of a step is one that no codec answers."""
    choices = CHOICES.model_copy(update={"least_gain_percent": 90.0})
    plan = planned(asked(communication=choices))

    assert plan.communication is not None
    assert plan.communication.chosen.is_exact
    assert "of the step; INT8 forward, FP16 backward saves" in (plan.communication.reason or "")
    assert "90 % are asked for" in (plan.communication.reason or "")
    assert all("below 90 %" in (each.refusal or "") for each in plan.communication.alternatives)


def test_baselines_are_judged_under_the_same_types() -> None:
    """Otherwise the gain of the codec would count as a gain of the search."""
    plan, exact = planned(asked()), planned(without_choice(asked()))

    ours = {each.algorithm: each.total_ms for each in plan.baselines}
    for each in exact.baselines:
        if each.total_ms is not None:
            narrow_ms = ours[each.algorithm]
            assert narrow_ms is not None
            assert narrow_ms < each.total_ms


def test_each_direction_has_the_time_of_its_own_type() -> None:
    """A narrow type forward leaves the exchange of gradients as it was."""
    request = asked()
    exact = encoded_exchange(without_choice(request))
    forward = encoded_exchange(without_choice(request, WireTypes(forward=WireType.INT8)))
    costs = ExactCosts(request.topology.device)
    columns = 1.5 * exact.mean_dim_sum

    (exact_forward, exact_backward), (narrow, unchanged) = (
        each.times_ms(np.array([columns]), costs)[0] for each in (exact, forward)
    )

    assert narrow < exact_forward
    assert unchanged == exact_backward


def test_passes_of_codecs_count_as_much_as_values_go_through_them() -> None:
    """Four passes over FP32 and the type on the wire at the codec's share of the bandwidth, and the launch of each."""
    request = asked()
    exchange = encoded_exchange(without_choice(request, WireTypes(forward=WireType.FP16, backward=WireType.FP16)))
    mean = exchange.mean_dim_sum

    forward, backward = exchange.codec_ms(np.array([mean]), ExactCosts(request.topology.device))[0]

    device = request.topology.device
    values = mean * request.global_batch_size
    passes_ms = 1000 * values * 6 * (1 / 0.37 + 1 / 0.52) / device.memory_bandwidth_bytes_per_second + 2 * 0.005
    copies = {
        width: 2 * 2 * mean * request.global_batch_size * width / (share * device.memory_bandwidth_bytes_per_second)
        for width, share in ((4, 0.9), (2, 0.79))
    }
    assert forward == pytest.approx(passes_ms + 1000 * (copies[4] - copies[2]), rel=1e-9)
    scaled_ms = 1000 * 2 * values * 8 / (0.8 * device.memory_bandwidth_bytes_per_second) + 2 * 0.005
    assert backward > forward + scaled_ms  # the division by the number of devices is a copy more


@generated(2, 4)
@given(
    num_nodes=st.sampled_from([1, 2]),
    dims=st.lists(st.sampled_from([16, 64, 128, 256]), min_size=4, max_size=6),
    batch_size=st.sampled_from([512, 4096, 16384]),
    pooling=st.sampled_from([1.0, 20.0]),
)
def test_a_choice_never_costs_more_and_nearly_as_little_as_the_best_pair(
    num_nodes: int, dims: list[int], batch_size: int, pooling: float
) -> None:
    """By the simulator: never above the exact plan, and within 1 % of the best permitted pair that is planned alone."""
    members = [builders.table(f"t{index}", embedding_dim=dim, pooling_factor=pooling) for index, dim in enumerate(dims)]
    request = builders.request(
        *members,
        topology=builders.topology(4 * num_nodes, num_nodes=num_nodes),
        batch_size_per_device=batch_size,
        communication=CHOICES,
        search=SearchSettings(work_budget=100),
    )

    chosen_ms = planned(request).predicted.total_ms
    exact_ms = planned(without_choice(request)).predicted.total_ms
    best_ms = min(planned(without_choice(request, types)).predicted.total_ms for types in CHOICES.pairs)

    assert chosen_ms <= exact_ms
    least_gain = 1 - 0.02
    assert chosen_ms <= max(1.01 * best_ms, exact_ms if best_ms > least_gain * exact_ms else 0.0)


def test_types_are_priced_though_the_exact_plan_avoids_all_to_alls() -> None:
    """Rows by node are cheaper than FP32 all-to-alls between 8 nodes, and columns in MX4 cheaper than both."""
    dims, pooling = (4, 8, 16, 32, 64, 128), (1.0, 5.0, 20.0, 60.0)
    choices = CommunicationChoices(forward=(WireType.INT8, WireType.MX4), backward=(WireType.BF16,))
    request = builders.request(
        *(
            builders.table(
                f"t{index}", embedding_dim=dims[index % 6], pooling_factor=pooling[index % 4], num_embeddings=10**6
            )
            for index in range(20)
        ),
        topology=preset("h100-80gb").topology(num_nodes=8, devices_per_node=4),
        batch_size_per_device=4096,
        constraints=Constraints(sharding_types=tuple(ShardingType)),
        communication=choices,
        search=SearchSettings(work_budget=300),
    )
    exact, plan = planned(without_choice(request)), planned(request)

    assert all(table.sharding_type is ShardingType.GRID for table in exact.tables)
    assert plan.communication is not None
    assert plan.communication.chosen == WireTypes(forward=WireType.MX4, backward=WireType.BF16)
    assert plan.communication.exact_exchange_ms == 0.0
    assert plan.predicted.total_ms < 0.98 * exact.predicted.total_ms
    assert not plan_problems(plan)

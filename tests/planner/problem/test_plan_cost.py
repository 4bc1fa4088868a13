"""What a placement costs, device by device."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Algorithm, ComputePeak
from neuroshard_api.documents.tables import Pooling
from neuroshard_costs.step_cost import Collective
from neuroshard_planner.baselines.greedy import BASELINES
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.problem.plan_cost import device_traffic, predicted_cost, simulated_cost
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from support.builders import request, table, tables, topology
from support.planner.exact_costs import ExactCosts
from support.planner.searches import placed, planned, problem_of


def test_a_device_waits_for_the_slowest_forward_compute() -> None:
    """The step is the slowest forward, the slowest backward and all exchanges."""
    problem = problem_of(request(*tables(3)))

    found = predicted_cost(problem, placed(problem, (0, 64, 0), (1, 64, 0), (2, 64, 1)), "simulated:test")

    first, *_, last = found.devices
    assert first.wait_ms == 0.0
    assert [each.wait_ms + each.forward_compute_ms for each in found.devices] == [first.forward_compute_ms] * 4
    assert [each.embedding_dim_sum for each in found.devices] == [128, 64, 0, 0]
    exchanges_ms = last.input_communication_ms + last.forward_communication_ms + last.backward_communication_ms
    slowest_ms = first.forward_compute_ms + max(each.backward_compute_ms for each in found.devices)
    assert found.total_ms == pytest.approx(slowest_ms + exchanges_ms)
    assert found.source == "simulated:test"


def test_the_predicted_cost_is_the_searchs_objective() -> None:
    """Spelled out per device it is the same number."""
    problem = problem_of(request(table("a", embedding_dim=128, pooling_factor=30.0), *tables(3)))
    placement = placed(problem, (0, 64, 0), (0, 64, 3), (1, 64, 1), (2, 64, 1), (3, 64, 2))

    found = predicted_cost(problem, placement, "simulated:test")

    assert found.total_ms == pytest.approx(problem.total_ms([placement])[0], rel=1e-9)
    largest = max(
        device.forward_compute_ms
        + device.wait_ms
        + device.input_communication_ms
        + device.forward_communication_ms
        + device.backward_compute_ms
        + device.backward_communication_ms
        for device in found.devices
    )
    assert found.total_ms == pytest.approx(largest, rel=1e-9)


def test_columns_are_summed_over_all_devices() -> None:
    """Also over those without a shard."""
    problem = problem_of(request(*tables(3)))
    traffic = device_traffic(problem, placed(problem, (0, 64, 2), (1, 64, 2), (2, 64, 0)))

    assert traffic[:, 0].tolist() == [64, 0, 128, 0]


def test_a_sequence_sends_a_vector_of_every_lookup_and_a_weighted_table_a_weight() -> None:
    """Traffic of both exchanges, by hand: columns per sample, and bytes of a global batch of 32,768."""
    members = (
        table("bags", pooling_factor=2.5),
        table("rows", pooling_factor=2.5, pooling=Pooling.NONE),
        table("weighted", pooling_factor=2.5, is_weighted=True),
    )
    problem = problem_of(request(*members))
    traffic = device_traffic(problem, placed(problem, (0, 64, 0), (1, 64, 1), (2, 64, 2)))

    assert traffic[:3, Collective.POOLED_EMBEDDINGS].tolist() == [64, 160, 64]
    samples = problem.request.global_batch_size
    assert traffic[:3, Collective.INDICES].tolist() == [samples * each for each in (24, 24, 34)]


def test_a_plan_with_sequences_is_sound_and_dearer_than_one_with_bags() -> None:
    """Three to six times as much travels, from the same tables and lookups; plan and request agree."""
    found = [
        planned(request(*(table(f"t{at}", pooling_factor=3.3 + at, pooling=pooling) for at in range(4)), num_devices=2))
        for pooling in (Pooling.SUM, Pooling.NONE)
    ]

    assert [plan_problems(each) for each in found] == [[], []]
    communication = [each.predicted.devices[0].forward_communication_ms for each in found]
    assert communication[1] > 2 * communication[0]  # an exchange has a latency too


def six_tables(num_nodes: int = 1) -> Problem:
    """Return six tables of several widths on four devices."""
    members = [table(f"t{index}", embedding_dim=16 * (index + 1), pooling_factor=index + 0.5) for index in range(6)]
    asked = request(*members, topology=topology(4, num_nodes=num_nodes))
    return Problem(asked, ExactCosts(asked.topology.device))


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_simulated_and_predicted_cost_agree_under_the_simulators_own_model(num_nodes: int) -> None:
    """A cost model without error predicts what the simulator gives, device by device, waits included."""
    problem = six_tables(num_nodes)
    placement = BASELINES[Algorithm.DIM_GREEDY](problem)

    predicted = predicted_cost(problem, placement, "simulated:test")
    simulated = simulated_cost(problem, placement)

    assert simulated.source == "simulated:test-80gb"
    assert simulated.total_ms == pytest.approx(predicted.total_ms, rel=2e-3)
    for one, other in zip(simulated.devices, predicted.devices, strict=True):
        terms, expected = (each.model_dump(exclude={"collectives"}, exclude_none=True) for each in (one, other))
        assert terms == pytest.approx(expected, rel=2e-3, abs=1e-6)


def test_column_shards_are_simulated_as_they_are_cut() -> None:
    """Two halves on two devices cost more than half each: halving a width does not halve its time."""
    problem = six_tables()
    unit = problem.units[5]
    halves = problem.kinds_of([5, 5], [ShardSize(unit.num_rows, unit.num_columns // 2)] * 2)

    whole = simulated_cost(problem, Placement(kinds=problem.whole[[5]], devices=np.array([0])))
    split = simulated_cost(problem, Placement(kinds=halves, devices=np.array([0, 1])))

    assert [device.embedding_dim_sum for device in split.devices] == [48, 48, 0, 0]
    assert whole.devices[0].backward_compute_ms / 2 < split.devices[0].backward_compute_ms
    assert split.devices[0].backward_compute_ms < whole.devices[0].backward_compute_ms
    assert split.devices[2].forward_compute_ms == 0.0


def test_where_the_passes_are_joint_a_device_waits_for_the_slowest_sum() -> None:
    """All devices' terms sum to the step."""
    problem = problem_of(request(*tables(3), compute_peak=ComputePeak.JOINT))

    found = predicted_cost(problem, placed(problem, (0, 64, 0), (1, 64, 0), (2, 64, 1)), "simulated:test")

    slowest = found.devices[0].forward_compute_ms + found.devices[0].backward_compute_ms
    for each in found.devices:
        assert each.forward_compute_ms + each.backward_compute_ms + each.wait_ms == pytest.approx(slowest)
        assert each.total_ms == pytest.approx(found.total_ms)

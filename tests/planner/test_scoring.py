"""Costs of a placement: what the simulator says where the cost model is the simulator, and where it is not."""

import builders
import numpy as np
import pytest
from exact_costs import ExactCosts
from neuroshard_planner.baselines import dim_greedy
from neuroshard_planner.problem import Placement, Problem, ShardSize
from neuroshard_planner.scoring import predicted_cost, simulated_cost


def problem_of(num_nodes: int = 1) -> Problem:
    """Return six tables of several widths on four devices."""
    members = [
        builders.table(f"t{index}", embedding_dim=16 * (index + 1), pooling_factor=index + 0.5) for index in range(6)
    ]
    request = builders.request(*members, topology=builders.topology(4, num_nodes=num_nodes))
    return Problem(request, ExactCosts(request.topology.device))


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_simulated_and_predicted_cost_agree_under_the_simulators_own_model(num_nodes: int) -> None:
    """A cost model without error predicts what the simulator gives, device by device, waits included."""
    problem = problem_of(num_nodes)
    placement = dim_greedy(problem)

    predicted = predicted_cost(problem, placement, "simulated:test")
    simulated = simulated_cost(problem, placement)

    assert simulated.source == "simulated:test-80gb"
    assert simulated.total_ms == pytest.approx(predicted.total_ms, rel=2e-3)
    for one, other in zip(simulated.devices, predicted.devices, strict=True):
        assert one.model_dump() == pytest.approx(other.model_dump(), rel=2e-3, abs=1e-6)


def test_column_shards_are_simulated_as_they_are_cut() -> None:
    """Two halves on two devices cost more than half each: halving a width does not halve its time."""
    problem = problem_of()
    unit = problem.units[5]
    halves = problem.kinds_of([5, 5], [ShardSize(unit.num_rows, unit.num_columns // 2)] * 2)

    whole = simulated_cost(problem, Placement(kinds=problem.whole[[5]], devices=np.array([0])))
    split = simulated_cost(problem, Placement(kinds=halves, devices=np.array([0, 1])))

    assert [device.embedding_dim_sum for device in split.devices] == [48, 48, 0, 0]
    assert whole.devices[0].backward_compute_ms / 2 < split.devices[0].backward_compute_ms
    assert split.devices[0].backward_compute_ms < whole.devices[0].backward_compute_ms
    assert split.devices[2].forward_compute_ms == 0.0

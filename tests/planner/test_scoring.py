"""What a placement costs, device by device."""

import numpy as np
import pytest
from builders import request, table, tables
from neuroshard_planner.scoring import device_columns, predicted_cost, step_cost
from searches import placed, problem_of


def test_a_device_waits_for_the_slowest_forward_compute() -> None:
    """The step is the slowest forward, the slowest backward and both all-to-alls."""
    compute = np.array([[1.0, 5.0], [3.0, 2.0], [0.0, 0.0]])

    found = step_cost(compute, np.array([8, 16, 0]), (0.5, 0.25), "simulated:test")

    assert [device.wait_ms for device in found.devices] == [2.0, 0.0, 3.0]
    assert [device.embedding_dim_sum for device in found.devices] == [8, 16, 0]
    assert found.total_ms == 3.0 + 5.0 + 0.75
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
        + device.forward_communication_ms
        + device.backward_compute_ms
        + device.backward_communication_ms
        for device in found.devices
    )
    assert found.total_ms == pytest.approx(largest, rel=1e-9)


def test_columns_are_summed_over_all_devices() -> None:
    """Also over those without a shard."""
    problem = problem_of(request(*tables(3)))

    assert device_columns(problem, placed(problem, (0, 64, 2), (1, 64, 2), (2, 64, 0))).tolist() == [64, 0, 128, 0]

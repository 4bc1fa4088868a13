"""The objective: levels of devices in, milliseconds of a step out."""

import numpy as np
import pytest
from builders import request, tables
from exact_costs import ExactCosts
from neuroshard_costs.shards import FloatArray
from neuroshard_planner.problem.step_cost import StepCost
from searches import problem_of


def columns(*numbers: float) -> FloatArray:
    """Return the traffic of placements whose widest device has these columns."""
    return np.array(numbers)[:, None]


def test_transfer_never_falls_with_the_largest_dimension_sum() -> None:
    """The knots are made monotone, and the least time is that of even sums."""
    asked = request(*tables(5, embedding_dim=128))
    step_cost = StepCost(asked, ExactCosts(asked.topology.device))

    times = step_cost.communication_ms(columns(*range(160, 640)))

    assert (np.diff(times) >= 0).all()
    assert step_cost.communication_ms(step_cost.least_traffic) == times[0]
    assert sum(step_cost.directions_ms(np.array([300.0]))) == pytest.approx(float(times[140]))


def test_interpolated_transfers_are_close_to_the_model() -> None:
    """A relative error below a thousandth between the knots."""
    asked = request(*tables(26, embedding_dim=128), num_devices=8)
    costs = ExactCosts(asked.topology.device)
    sums = np.linspace(416.0, 3328.0, 57)

    exact = costs.transfer_ms(
        sums,
        mean_dim_sum=416.0,
        topology=asked.topology,
        batch_size_per_device=asked.batch_size_per_device,
        bytes_per_element=4,
    ).sum(axis=1)

    assert np.allclose(StepCost(asked, costs).communication_ms(columns(*sums)), exact, rtol=1e-3)


def test_one_device_transfers_nothing() -> None:
    """There is no all-to-all to wait for."""
    step_cost = problem_of(request(num_devices=1)).step_cost

    assert step_cost.communication_ms(step_cost.least_traffic) == 0.0
    assert step_cost.communication_ms(columns(256.0)).tolist() == [0.0]


def test_the_price_of_traffic_is_its_share_of_the_step() -> None:
    """Twice the price over a small interval: what the interval adds."""
    asked = request(*tables(26, embedding_dim=128), num_devices=8)
    step_cost = StepCost(asked, ExactCosts(asked.topology.device))
    peaks = np.array([1.0, 2.0, 800.0])

    prices = step_cost.prices(peaks, least_steps=np.array([4.0]))

    added = step_cost.total_ms(np.array([1.0, 2.0, 840.0])) - step_cost.total_ms(peaks)
    assert prices[:2].tolist() == [1.0, 1.0]
    assert prices[2] * 40.0 == pytest.approx(float(added))

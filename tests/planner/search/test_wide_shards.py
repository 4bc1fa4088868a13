"""Placements whose wide shards have devices of their own."""

from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings, TableConstraints
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.step_cost import TIMES
from neuroshard_planner.planning import searched
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.search.estimator import tangent
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.wide_shards import separated
from support.builders import request, table
from support.planner.exact_costs import ExactCosts

H100 = bundled_bundle("h100-80gb")


MANY = (
    *((2982, 32, 1.7), (3066840, 128, 2.1), (1976415, 64, 2.8), (16254, 128, 2.2), (1041, 32, 0.7), (680123, 64, 0.9)),
    *((1736, 16, 0.8), (6978485, 16, 1.7), (6173920, 128, 2.7), (24772707, 32, 2.0), (38023748, 64, 16.6)),
    *((28897852, 32, 1.2), (225913, 16, 2.5), (11130824, 32, 1.4), (24949711, 64, 0.9), (366, 128, 0.3)),
    *((235, 16, 13.0), (2025, 64, 10.5), (72781, 32, 1.0), (300519, 128, 1.6), (445922, 128, 20.0), (1281, 128, 4.0)),
    *((336854, 128, 0.8), (47301, 128, 29.5), (3954567, 64, 1.1), (961861, 16, 14.3)),
)
"""Rows, columns, and lookups of tables. Descents from proposals end with all wide ones cut, whatever the seed."""


def asked(*tables: tuple[int, int, float], num_devices: int = 2, **limits: Any) -> PlanRequest:
    """Return a request of tables of these rows, columns, and lookups."""
    members = [
        table(f"t{position}", num_embeddings=rows, embedding_dim=width, pooling_factor=lookups)
        for position, (rows, width, lookups) in enumerate(tables or MANY)
    ]
    return request(
        *members,
        topology=preset("h100-80gb").topology(num_nodes=1, devices_per_node=num_devices),
        batch_size_per_device=4096,
        constraints=Constraints(sharding_types=BY_COLUMNS, **limits),
        search=SearchSettings(),
    )


def found(problem: Problem, *, most_ms: float = float("inf"), most_work: int = 10**6) -> list[Placement]:
    """Return the placements of a problem."""
    sums = problem.kinds.representation[problem.whole].sum(axis=0) / problem.num_devices
    options = OptionTable(problem)
    loads = weighted_sum(problem.kinds.representation, tangent(problem, sums).sum(axis=1))
    return separated(problem, options, loads, most_ms=most_ms, most_work=most_work)


def widest_lanes(problem: Problem, placement: Placement) -> list[float]:
    """Return the most lanes of a shard on each device."""
    widest = np.zeros(problem.num_devices)
    np.maximum.at(widest, placement.devices, problem.lanes(placement.kinds))
    return widest.tolist()


@pytest.mark.parametrize("num_devices", [2, 3, 8])
def test_wide_shards_are_on_few_devices(num_devices: int) -> None:
    """Some device has less lanes than others; every table has all of its columns."""
    problem = Problem(asked(num_devices=num_devices), H100)

    placements = found(problem)

    assert placements
    for placement in placements:
        assert len(set(widest_lanes(problem, placement))) > 1
        columns = np.bincount(problem.kinds.unit[placement.kinds], problem.kinds.num_columns[placement.kinds])
        assert columns.tolist() == [each.num_columns for each in problem.units]
        assert problem.fits(placement)


@pytest.mark.parametrize(
    ("widths", "limits", "costs"),
    [
        ((128, 64, 32), {}, ExactCosts(preset("h100-80gb").topology(num_nodes=1, devices_per_node=2).device)),
        ((32, 16, 16), {}, H100),
        ((128, 128, 128), {"max_shards_per_table": 1}, H100),
    ],
    ids=["costs that know no lanes", "narrow tables", "wide tables that may not be cut"],
)
def test_there_are_none_where_no_cut_spares_lanes(
    widths: tuple[int, ...], limits: dict[str, int], costs: CostModel
) -> None:
    """As many lanes on all devices, or more of them on each that has a table."""
    problem = Problem(asked(*((100_000, width, 4.0) for width in widths), num_devices=2, **limits), costs)

    assert all(len(set(widest_lanes(problem, each))) > 1 for each in found(problem))
    assert not found(problem)


@pytest.mark.parametrize("device", [0, 1])
def test_wide_shards_are_on_devices_that_may_hold_them(device: int) -> None:
    """A wide table with a device of its own has it, and others come there."""
    first = TableConstraints(devices=(device,))
    problem = Problem(asked(num_devices=2, tables={"t1": first}), H100)

    widest = [widest_lanes(problem, each) for each in found(problem)]

    assert any(lanes[device] == 1.0 > lanes[1 - device] for lanes in widest)


def test_a_forbidden_device_is_none_of_the_two_sorts() -> None:
    """Of four devices with two forbidden, one is wide and one narrow."""
    problem = Problem(asked(num_devices=4, forbidden_devices=(0, 1)), H100)

    widest = [widest_lanes(problem, each) for each in found(problem)]

    assert [1.0, 0.5] in [sorted(lanes[2:], reverse=True) for lanes in widest]
    assert all(lanes[:2] == [0.0, 0.0] for lanes in widest)


def test_even_devices_tell_what_is_worth_placing() -> None:
    """They are near the computes of the best placement: a little more finds it, a fifth less nothing."""
    problem = Problem(asked(), H100)
    best = problem.cheapest(found(problem))
    compute_ms = float(problem.device_levels([best])[0, :, TIMES].max(axis=0).sum())

    near = found(problem, most_ms=1.05 * compute_ms)

    assert problem.total_ms(near).min() == problem.total_ms([best])[0]
    assert not found(problem, most_ms=0.8 * compute_ms)


def test_less_work_places_fewer() -> None:
    """Without any nothing is placed, nor even looked at."""
    problem, taken = Problem(asked(), H100), []
    for work in (0, 100, 10**6):
        begin = problem.work
        assert bool(found(problem, most_work=work)) == (work > 0)
        taken.append(problem.work - begin)

    tangents, *_ = taken
    assert tangents < taken[1] < 1.5 * 100 + tangents < taken[2]


def test_a_plan_leaves_wide_tables_whole_on_one_of_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of them cut, as the search without such a start ends, it costs more."""
    problem = Problem(asked(), H100)
    plan = searched(problem.request, H100, None)

    monkeypatch.setattr("neuroshard_planner.search.by_columns.separated", lambda *_args, **_limits: [])
    without = searched(problem.request, H100, None)

    assert sorted(widest_lanes(problem, placement_of(plan.tables, problem))) == [0.5, 1.0]
    assert 1.02 * plan.predicted.total_ms < without.predicted.total_ms

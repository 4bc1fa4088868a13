"""Placements whose wide shards have devices of their own."""

import numpy as np
import pytest
from neuroshard_api.documents.request import Constraints, PlanRequest, SearchSettings
from neuroshard_costs.arithmetic import weighted_sum
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.planning import searched
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.search.estimator import tangent
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.wide_shards import separated
from support.builders import request, table, topology
from support.planner.exact_costs import ExactCosts

H100 = bundled_bundle("h100-80gb")


def asked(widths: tuple[int, ...] = (128, 128, 128, 64, 64, 64, 64, 32, 32, 32), num_devices: int = 2) -> PlanRequest:
    """Return a request of tables of these widths, the wide ones looked up most."""
    members = [
        table(f"t{position}", embedding_dim=width, pooling_factor=width / 8, num_embeddings=300_000)
        for position, width in enumerate(widths)
    ]
    return request(
        *members,
        topology=topology(num_devices),
        batch_size_per_device=8192,
        constraints=Constraints(sharding_types=BY_COLUMNS),
        search=SearchSettings(),
    )


def found(problem: Problem, *, most_ms: float = float("inf"), most_work: int = 10**6) -> list[Placement]:
    """Return the placements of a problem."""
    sums = problem.kinds.representation[problem.whole].sum(axis=0) / problem.num_devices
    options = OptionTable(problem)
    loads = weighted_sum(problem.kinds.representation, tangent(problem, sums).sum(axis=1))
    return separated(problem, options, loads, most_ms=most_ms, most_work=most_work)


@pytest.mark.parametrize("num_devices", [2, 3, 8])
def test_wide_shards_are_on_few_devices(num_devices: int) -> None:
    """Some device has none of more lanes than one sort of them needs; every table has all of its columns."""
    problem = Problem(asked(num_devices=num_devices), H100)

    placements = found(problem)

    assert placements
    for placement in placements:
        widest = np.zeros(num_devices)
        np.maximum.at(widest, placement.devices, problem.lanes(placement.kinds))
        assert widest.min() < widest.max()
        columns = np.bincount(problem.kinds.unit[placement.kinds], problem.kinds.num_columns[placement.kinds])
        assert columns.tolist() == [each.num_columns for each in problem.units]
        assert problem.fits(placement)


@pytest.mark.parametrize(
    ("widths", "costs"),
    [((64, 64, 64), H100), ((128, 64, 32), None)],
    ids=["tables of one width", "costs that know no lanes"],
)
def test_there_are_none_where_lanes_do_not_differ(widths: tuple[int, ...], costs: CostModel | None) -> None:
    """Cuts are of fewer lanes, but no table that stays whole has more than another one needs."""
    request = asked(widths)
    problem = Problem(request, costs or ExactCosts(request.topology.device))

    assert all(len(set(problem.lanes(each.kinds).tolist())) > 1 for each in found(problem))
    if costs is None:
        assert not found(problem)


def test_limits_end_the_search_for_them() -> None:
    """None is placed where even devices cost too much, or where there is no work."""
    problem = Problem(asked(), H100)

    assert found(problem)
    assert not found(problem, most_ms=0.0)
    assert not found(problem, most_work=0)


def test_a_plan_leaves_wide_tables_whole_on_one_of_two_devices() -> None:
    """With all of them cut, or some on each device, it costs more."""
    problem = Problem(asked(), H100)
    plan = searched(problem.request, H100, None)
    placement = placement_of(plan.tables, problem)

    lanes = [problem.lanes(placement.kinds[placement.devices == device]).max() for device in range(2)]
    cut = asked().model_copy(update={"constraints": Constraints(sharding_types=BY_COLUMNS, max_shard_width=64)})

    assert sorted(lanes) == [0.5, 1.0]
    assert plan.predicted.total_ms < searched(cut, H100, None).predicted.total_ms

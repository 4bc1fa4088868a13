"""Random changes between two descents."""

from neuroshard_planner.problem.problem import Problem
from support.builders import request, table, tables
from support.planner.searches import perturbation, placed, problem_of


def widths(problem: Problem, seed: int) -> list[tuple[int, int, int]]:
    """Return unit, columns and device of every shard after one perturbation of whole tables in turn."""
    start = placed(problem, *((unit, 64, unit % 4) for unit in range(12)))
    found = perturbation(problem, seed).perturbed(start)
    kinds = problem.kinds
    return sorted(
        (int(kinds.unit[kind]), int(kinds.num_columns[kind]), int(device))
        for kind, device in zip(found.kinds, found.devices, strict=True)
    )


def test_perturbation_are_drawn_from_the_generator() -> None:
    """Equal generators perturbation alike; over a few seeds a perturbation changes the placement."""
    problem = problem_of(request(*tables(12)))
    start = sorted((unit, 64, unit % 4) for unit in range(12))

    assert [widths(problem, seed) for seed in range(8)] == [widths(problem, seed) for seed in range(8)]
    assert any(widths(problem, seed) != start for seed in range(8))


def test_a_kick_may_move_shards_or_cut_a_table_anew() -> None:
    """Both kinds come up, and no column is lost by either."""
    problem = problem_of(request(*tables(12)))

    found = [widths(problem, seed) for seed in range(20)]

    assert any(len(each) > 12 for each in found)
    assert any(len(each) == 12 for each in found)
    for each in found:
        assert sum(columns for _, columns, _ in each) == 12 * 64


def test_what_fits_nowhere_else_stays() -> None:
    """A single device leaves nothing to perturbation."""
    problem = problem_of(request(table(), num_devices=1))
    start = placed(problem, (0, 64, 0))

    found = perturbation(problem, 3).perturbed(start)

    assert found.devices.tolist() == [0]
    assert problem.kinds.num_columns[found.kinds].sum() == 64

"""The frontier of units that choose one option each: that of all combinations."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
from neuroshard_dense.choice import Point, PricedOption, best
from neuroshard_dense.frontier import frontier, limits
from neuroshard_dense.sums import MAX_POINTS, Sums, unbeaten
from numpy.typing import NDArray

Values = NDArray[np.float64]


def drawn(rng: random.Random) -> tuple[list[list[PricedOption]], list[int]]:
    """Return up to six units of up to four options, and up to 24 transients, of which some units repeat."""
    units = [
        [
            PricedOption(
                kept_bytes=rng.randint(-40, 40),
                transient_bytes=rng.randrange(24),
                recomputed_bytes=rng.choice((0, 0, rng.randrange(40))),
                ms=rng.randint(0, 20) / 4,
            )
            for _ in range(rng.randint(1, 4))
        ]
        for _ in range(rng.randint(1, 6))
    ]
    return units, [rng.choice((1, 1, 2)) if len(units) < 4 else 1 for _ in units]


def peak(chosen: Sequence[PricedOption]) -> int:
    """Return the largest transient of collectives and the largest recomputed activations, together."""
    return max(each.transient_bytes for each in chosen) + max(each.recomputed_bytes for each in chosen)


def brute_force(units: list[list[PricedOption]], repeats: list[int]) -> set[tuple[int, float]]:
    """Return memory and time of the frontier of all combinations."""
    expanded = [unit for unit, times in zip(units, repeats, strict=True) for _ in range(times)]
    points = [
        Point(
            memory_bytes=sum(each.kept_bytes for each in chosen) + peak(chosen),
            ms=sum(each.ms for each in chosen),
            chosen=(),
        )
        for chosen in itertools.product(*expanded)
    ]
    return {(point.memory_bytes, point.ms) for point in best(points)}


def test_the_frontier_is_that_of_all_combinations() -> None:
    """On 200 random sets of units, to the byte; times are quarters, whose sums are exact."""
    rng = random.Random(7)  # noqa: S311 - draws test data
    for _ in range(200):
        units, repeats = drawn(rng)

        found = frontier(units, repeats)

        assert {(point.memory_bytes, point.ms) for point in found} == brute_force(units, repeats)


def test_of_more_limits_than_are_tried_none_is_left_out_that_holds_a_point_of_the_frontier() -> None:
    """Transients of five units that all differ: the result is that of a merge for each pair of limits."""
    rng = random.Random(9)  # noqa: S311 - draws test data
    for _ in range(8):
        units = [
            [
                PricedOption(
                    kept_bytes=rng.randrange(10**6),
                    transient_bytes=rng.randrange(10**6),
                    recomputed_bytes=rng.randrange(10**6),
                    ms=rng.randrange(2**20) / 4,
                )
                for _ in range(5)
            ]
            for _ in range(5)
        ]
        combinations = np.array(list(itertools.product(range(5), repeat=5)))

        def of_all(
            field: str, units: list[list[PricedOption]] = units, rows: NDArray[np.int64] = combinations
        ) -> Values:
            values = np.array([[getattr(each, field) for each in unit] for unit in units])
            return values[np.arange(5), rows]

        transient, recomputed = of_all("transient_bytes"), of_all("recomputed_bytes")
        peaks = [transient.max(axis=1), recomputed.max(axis=1)]
        kept, ms = of_all("kept_bytes").sum(axis=1), of_all("ms").sum(axis=1)
        memory = kept + peaks[0] + peaks[1]
        tried = limits(np.unique(transient), np.unique(recomputed))
        assert len(tried[0]) * len(tried[1]) < len(np.unique(transient)) * len(np.unique(recomputed))
        expected = []
        for first, second in itertools.product(*tried):
            places = np.flatnonzero((peaks[0] <= first) & (peaks[1] <= second))
            if len(places):
                places = places[unbeaten(kept[places], ms[places])]
                expected += [Point(memory_bytes=int(memory[place]), ms=float(ms[place]), chosen=()) for place in places]

        found = frontier(units, [1] * 5)

        assert [(point.memory_bytes, point.ms) for point in found] == [
            (point.memory_bytes, point.ms) for point in best(expected)
        ]


def test_a_point_names_the_options_that_add_up_to_it() -> None:
    """One number for each of the equal units that one stands for, in their order."""
    rng = random.Random(8)  # noqa: S311 - draws test data
    units, repeats = drawn(rng)
    expanded = [unit for unit, times in zip(units, repeats, strict=True) for _ in range(times)]

    for point in frontier(units, repeats):
        chosen = [unit[number] for unit, number in zip(expanded, point.chosen, strict=True)]
        kept = sum(each.kept_bytes for each in chosen)
        assert point.memory_bytes == kept + peak(chosen)
        assert point.ms == sum(each.ms for each in chosen)


def test_many_points_are_thinned_by_at_most_an_interval_of_memory() -> None:
    """Twelve units whose 4,096 sums are all on the frontier: the ends stay, and no gap is wider than two intervals."""
    units = [
        [
            PricedOption(kept_bytes=kept, transient_bytes=0, recomputed_bytes=0, ms=float(2**bit - kept))
            for kept in (0, 2**bit)
        ]
        for bit in range(12)
    ]

    found = frontier(units, [1] * 12)

    memory = [point.memory_bytes for point in found]
    assert len(found) <= MAX_POINTS
    assert (memory[0], memory[-1]) == (0, 4095)
    assert max(after - before for before, after in itertools.pairwise(memory)) <= 2 * 4096 / (MAX_POINTS - 1) + 1


def test_units_of_one_option_are_merged_at_once_as_one_after_the_other() -> None:
    """Also where times that differ by the last bit round to the same, so that a point is beaten."""
    rng = random.Random(4)  # noqa: S311 - draws test data
    last_bit = float(np.nextafter(1.0, 2.0))
    for _ in range(50):
        units = [
            [
                PricedOption(
                    kept_bytes=rng.randint(-40, 40),
                    transient_bytes=rng.randrange(24),
                    recomputed_bytes=rng.randrange(24),
                    ms=rng.choice((1.0, last_bit, rng.random(), 1e6)),
                )
                for _ in range(rng.choice((1, 1, 1, 4)))
            ]
            for _ in range(8)
        ]
        sums = [Sums.of(unit, range(len(unit))) for unit in units]
        expected = Sums.empty()
        for each in sums:
            expected = expected.merged(each)

        found = Sums.empty().merged_all(sums)

        everywhere = np.arange(len(expected.kept))
        assert found.kept.tolist() == expected.kept.tolist()
        assert found.ms.tolist() == expected.ms.tolist()
        assert found.peaks.tolist() == expected.peaks.tolist()
        assert found.chosen(everywhere).tolist() == expected.chosen(everywhere).tolist()
        for point, numbers in enumerate(found.chosen(everywhere).tolist()):
            chosen = [unit[number] for unit, number in zip(units, numbers, strict=True)]
            assert found.kept[point] == sum(each.kept_bytes for each in chosen)
            assert found.peaks[:, point].sum() == peak(chosen)

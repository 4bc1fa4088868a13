"""How devices are divided among variants: a schedule that keeps to them, next to an exhaustive search."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_report.explain.divisions import (
    Division,
    PartTimes,
    Room,
    best_division,
    equal_division,
    in_turns,
)
from support.depth import generated

ROOMS = st.builds(Room, num_nodes=st.sampled_from([1, 2, 4]), devices_per_node=st.sampled_from([1, 2, 3, 4]))


@st.composite
def tasks(draw: st.DrawFn, *, most: int = 4) -> tuple[Room, list[PartTimes]]:
    """Return devices, and times of variants on them, where a part that is too small has none."""
    room = draw(ROOMS)
    count = draw(st.integers(1, most))
    times: list[PartTimes] = []
    for _ in range(count):
        first = draw(st.integers(0, len(room.sizes) - 1))
        some = draw(st.lists(st.integers(1, 20), min_size=len(room.sizes), max_size=len(room.sizes)))
        times.append([None if place < first else float(time) for place, time in enumerate(some)])
    return room, times


def best_of_all_sizes(times: list[PartTimes], room: Room) -> float:
    """Return the least total of every choice of sizes."""
    fitting = [[place for place, time in enumerate(each) if time is not None] for each in times]
    return min(
        in_turns(
            [room.sizes[place] for place in places],
            [each[place] or 0.0 for each, place in zip(times, places, strict=True)],
            room,
        ).total
        for places in itertools.product(*fitting)
    )


def least_total(times: list[PartTimes], room: Room) -> float:
    """Return a time that no division is below: devices are never more than full, and no training is cut."""
    sizes = room.sizes
    areas = [min(size * time for size, time in zip(sizes, each, strict=True) if time is not None) for each in times]
    longest = max(min(time for time in each if time is not None) for each in times)
    return max(longest, math.fsum(areas) / room.num_devices)


@generated(60, 2000)
@given(task=tasks(most=6))
def test_no_device_has_two_variants_and_every_variant_trains_once(task: tuple[Room, list[PartTimes]]) -> None:
    """A part is of one node or of whole nodes, and the time is never below the bound."""
    room, times = task
    found = best_division(times, room)

    assert found is not None
    assert sorted(turn.variant for turn in found.turns) == list(range(len(times)))
    for turn in found.turns:
        size = len(turn.devices)
        assert turn.end - turn.begin == pytest.approx(times[turn.variant][room.sizes.index(size)])
        nodes = {device // room.devices_per_node for device in turn.devices}
        assert len(nodes) == max(1, size // room.devices_per_node)
    for first, second in itertools.combinations(found.turns, 2):
        is_apart = first.end <= second.begin or second.end <= first.begin
        assert is_apart or not {*first.devices} & {*second.devices}
    assert found.total >= least_total(times, room) - 1e-9


@generated(60, 2000)
@given(task=tasks(most=6))
def test_the_best_division_is_never_slower_than_equal_parts(task: tuple[Room, list[PartTimes]]) -> None:
    """Nor than one variant after the other."""
    room, times = task
    found = best_division(times, room)

    assert found is not None
    for size in room.sizes:
        equal = equal_division(times, size, room)
        assert equal is None or found.total <= equal.total


@generated(60, 2000)
@given(room=ROOMS, count=st.integers(1, 4), some=st.lists(st.integers(1, 20), min_size=6, max_size=6))
def test_equal_variants_are_divided_as_well_as_an_exhaustive_search_does(
    room: Room, count: int, some: list[int]
) -> None:
    """Where a larger part is never slower, as of a real model at a batch that stays."""
    times = [sorted(map(float, some[: len(room.sizes)]), reverse=True)] * count
    found = best_division(times, room)

    assert found is not None
    assert found.total == best_of_all_sizes(list(times), room)


@generated(60, 2000)
@given(task=tasks())
def test_unequal_variants_are_divided_nearly_as_well(task: tuple[Room, list[PartTimes]]) -> None:
    """Single changes of sizes may end before the best choice of all."""
    room, times = task
    found = best_division(times, room)

    assert found is not None
    assert found.total <= 1.5 * best_of_all_sizes(times, room)


def test_a_variant_that_is_left_over_has_all_devices() -> None:
    """Nine on eight devices: eight on one each, and one on all of them, rather than two rounds."""
    room = Room(num_nodes=1, devices_per_node=8)
    found = best_division([[8.0, 5.0, 3.0, 2.0]] * 9, room)

    assert found is not None
    assert sorted(found.sizes.values()) == [1] * 8 + [8]
    assert found.total == 10.0


def test_a_large_variant_trains_next_to_small_ones() -> None:
    """The one that fits on four devices alone has these, while four others have one each."""
    room = Room(num_nodes=1, devices_per_node=8)
    large: PartTimes = [None, None, 6.0, 4.0]
    small: PartTimes = [5.0, 4.0, 3.5, 3.0]
    found = best_division([small, small, large, small, small], room)

    assert found is not None
    assert (found.sizes[2], found.total) == (4, 6.0)


def test_devices_stay_idle_where_exchanges_cost_more_than_they_save() -> None:
    """Two variants on eight devices, each fastest on one."""
    room = Room(num_nodes=1, devices_per_node=8)
    found = best_division([[2.0, 3.0, 3.5, 4.0]] * 2, room)

    assert found is not None
    assert [*found.sizes.values()] == [1, 1]


def test_a_variant_that_fits_nowhere_has_no_division() -> None:
    """And no equal parts where it fits on larger ones alone."""
    room = Room(num_nodes=1, devices_per_node=2)

    assert best_division([[1.0, 1.0], [None, None]], room) is None
    assert equal_division([[None, 1.0]], 1, room) is None
    assert isinstance(equal_division([[None, 1.0]], 2, room), Division)

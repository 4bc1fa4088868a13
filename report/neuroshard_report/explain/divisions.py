"""How devices are divided among variants of a model: in parts, one after the other, or both, by predicted times.

Each variant trains on a part of equal devices: some of one node, or whole nodes. In a fixed order, those on the largest
parts first, each begins as soon as a part is free for it, so that the sizes of the parts decide everything. With equal
sizes the devices are cut into parts, and variants take turns on them; with the size of all devices the variants train
one after the other. Where sizes differ, a variant that is left over, or that fits on no smaller part, has a larger one.

The sizes are searched from each equal size by changes of one variant's size, as long as all end earlier, or equally
early and the mean variant earlier.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDING = 1e-9
PartTimes = Sequence[float | None]
"""Time of one variant on a part of each size. None: it does not fit there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Equal nodes that are divided."""

    num_nodes: int
    devices_per_node: int

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return self.num_nodes * self.devices_per_node

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices that a part may have, ascending: they divide a node, or are nodes that divide all nodes."""
        within = [size for size in range(1, self.devices_per_node) if self.devices_per_node % size == 0]
        whole = [count for count in range(1, self.num_nodes + 1) if self.num_nodes % count == 0]
        return (*within, *(count * self.devices_per_node for count in whole))


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One variant on its part."""

    variant: int
    devices: tuple[int, ...]
    """Numbers of the devices; those of a node follow each other."""
    begin: float
    end: float
    """And ``begin``: in the unit of the variants' times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """Which variant trains when, and on which devices."""

    turns: tuple[Turn, ...]
    """In the order in which they begin."""

    @property
    def total(self) -> float:
        """Time until all variants have trained."""
        return max(turn.end for turn in self.turns)

    @property
    def mean_end(self) -> float:
        """Mean time until a variant has trained."""
        return sum(turn.end for turn in self.turns) / len(self.turns)

    @property
    def sizes(self) -> dict[int, int]:
        """Devices of each variant."""
        return {turn.variant: len(turn.devices) for turn in self.turns}


class FreeDevices:
    """Devices that no variant has.

    Args:
        room: all devices.
    """

    def __init__(self, room: Room) -> None:
        self._per_node = room.devices_per_node
        self._free = [list(range(node * self._per_node, (node + 1) * self._per_node)) for node in range(room.num_nodes)]

    def take(self, size: int) -> tuple[int, ...] | None:
        """Take a part: of the fullest node that has it, or whole nodes. None: no such part is free."""
        if size < self._per_node:
            free = min((each for each in self._free if len(each) >= size), key=len, default=None)
            if free is None:
                return None
            taken = tuple(free[:size])
            del free[:size]
            return taken
        count = size // self._per_node
        whole = [each for each in self._free if len(each) == self._per_node][:count]
        if len(whole) < count:
            return None
        taken = tuple(device for each in whole for device in each)
        for each in whole:
            each.clear()
        return taken

    def give_back(self, devices: Sequence[int]) -> None:
        """Return a part."""
        for device in devices:
            self._free[device // self._per_node].append(device)


def in_turns(sizes: Sequence[int], times: Sequence[float], room: Room) -> Division:
    """Return the course of variants on parts of these sizes.

    Args:
        sizes: devices of each variant, each of ``room.sizes``.
        times: of each variant on its part.
        room: the devices.
    """
    free, running, now = FreeDevices(room), list[tuple[float, int, tuple[int, ...]]](), 0.0
    turns = []
    for variant in order_of(sizes, times):
        while (devices := free.take(sizes[variant])) is None:
            now, _, ended = heapq.heappop(running)
            free.give_back(ended)
        turns.append(Turn(variant=variant, devices=devices, begin=now, end=now + times[variant]))
        heapq.heappush(running, (now + times[variant], variant, devices))
    return Division(turns=tuple(turns))


def order_of(sizes: Sequence[int], times: Sequence[float]) -> list[int]:
    """Return the order in which variants begin: large parts first, of equal ones the longest training."""
    return sorted(range(len(sizes)), key=lambda variant: (-sizes[variant], -times[variant], variant))


def equal_division(times: Sequence[PartTimes], size: int, room: Room) -> Division | None:
    """Return the division in which every variant has a part of one size. None: one does not fit there."""
    place = room.sizes.index(size)
    taken = [each[place] for each in times]
    if any(time is None for time in taken):
        return None
    return in_turns([size] * len(times), [time for time in taken if time is not None], room)


def best_division(times: Sequence[PartTimes], room: Room) -> Division | None:
    """Return the division with the least time until all variants have trained. None: a variant fits nowhere.

    Args:
        times: of each variant on a part of each of ``room.sizes``.
        room: the devices.
    """
    if any(all(time is None for time in each) for each in times):
        return None
    starts = {tuple(_smallest_from(each, place) for each in times) for place in range(len(room.sizes))}
    found = [_improved(list(start), times, room) for start in sorted(starts)]
    return min(found, key=lambda each: (each.total, each.mean_end))


def _smallest_from(times: PartTimes, place: int) -> int:
    """Return the place of the nearest size on which a variant fits, a larger one if there is any."""
    fitting = [other for other, time in enumerate(times) if time is not None]
    return next((other for other in fitting if other >= place), fitting[-1])


def _improved(places: list[int], times: Sequence[PartTimes], room: Room) -> Division:
    """Return the division after changes of one variant's size at a time, until no change is better."""
    best, unchanged, variant = _division(places, times, room), 0, 0
    while unchanged < len(places):
        before = places[variant]
        for place, time in enumerate(times[variant]):
            if time is None or place == places[variant]:
                continue
            changed = [*places[:variant], place, *places[variant + 1 :]]
            found = _division(changed, times, room)
            if _is_better(found, best):
                best, places = found, changed
        unchanged = unchanged + 1 if places[variant] == before else 0
        variant = (variant + 1) % len(places)
    return best


def _is_better(found: Division, best: Division) -> bool:
    """Return whether all end earlier, or equally early and the mean variant earlier; by more than rounding."""
    if found.total < best.total * (1 - _ROUNDING):
        return True
    return found.total <= best.total and found.mean_end < best.mean_end * (1 - _ROUNDING)


def _division(places: Sequence[int], times: Sequence[PartTimes], room: Room) -> Division:
    taken = [each[place] for each, place in zip(times, places, strict=True)]
    return in_turns([room.sizes[place] for place in places], [time for time in taken if time is not None], room)

"""Layouts of a dense part that are worth choosing from: their memory as the ledger has it, and their time."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from neuroshard_api.documents.dense_layout import DenseLayout, DenseMemory, DensePoint
from neuroshard_api.documents.dense_profile import DenseProfile
from numpy.typing import NDArray

from neuroshard_dense.choice import Point, PricedOption, best
from neuroshard_dense.frontier import frontier
from neuroshard_dense.options import UnitBytes, UnitOption, UnitOptions
from neuroshard_dense.timeline import TimedUnit, Timeline

MOST_POINTS = 200
"""Of a frontier in a plan; the document takes 256."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutCandidate:
    """An option for every module of a dense part."""

    options: tuple[UnitOption, ...]
    memory: DenseMemory

    @property
    def compute_ms(self) -> float:
        """Matrix products of a step."""
        return sum(each.compute_ms for each in self.options)

    @property
    def exposed_ms(self) -> float:
        """Collectives that nothing hides."""
        return sum(each.exposed_ms for each in self.options)

    @property
    def copies_ms(self) -> float:
        """Copies of the buffers of collectives."""
        return sum(each.copies_ms for each in self.options)

    @property
    def ms(self) -> float:
        """All three."""
        return self.compute_ms + self.exposed_ms + self.copies_ms

    @property
    def is_plain(self) -> bool:
        """Whether all is replicated, and nothing checkpointed."""
        return all(each.shared_by == 1 and not each.checkpointed for each in self.options)


class Layouts:
    """The candidates of a dense part, by memory.

    Args:
        profile: the dense part; it names all modules of units that repeat.
        options: of its units.
        copies_transfers: whether collectives take a copy of what they transfer, as gloo does on a CPU.
    """

    def __init__(self, profile: DenseProfile, options: UnitOptions, *, copies_transfers: bool = False) -> None:
        self._profile = profile
        self._units = [unit for unit in profile.units for _ in range(unit.repeats)]
        self._bytes = [UnitBytes.of(unit, profile) for unit in self._units]
        self._modules = tuple(path for unit in profile.units for path in unit.modules)
        passes = profile.working_bytes if profile.passes_working_bytes is None else profile.passes_working_bytes
        self._timeline = Timeline(
            [TimedUnit.of(unit, module, profile) for unit, module in zip(self._units, self._modules, strict=True)],
            passes_bytes=passes,
            copies_transfers=copies_transfers,
        )
        (self.plain,) = self._made([[options.replicated(unit) for unit in self._units]])
        """All replicated, nothing checkpointed."""
        by_unit = [options.of(unit) for unit in profile.units]
        self.candidates = self._candidates(by_unit)
        """The frontier, as exact as ``frontier`` finds it; the least memory first, the least time last."""

    def layout(self, chosen: LayoutCandidate, *, source: str) -> DenseLayout:
        """Write a candidate down, with at most MOST_POINTS of the frontier, at even distances."""
        last = len(self.candidates) - 1
        shown = {round(place * last / (MOST_POINTS - 1)) for place in range(MOST_POINTS)}
        return DenseLayout(
            units=tuple(each.planned(path) for path, each in zip(self._modules, chosen.options, strict=True)),
            num_parameters=self._profile.num_parameters,
            memory=chosen.memory,
            replicated_bytes=self._profile.total_bytes,
            compute_ms=chosen.compute_ms,
            exposed_ms=chosen.exposed_ms,
            copies_ms=chosen.copies_ms,
            replicated_ms=self.plain.ms,
            source=source,
            frontier=tuple(
                DensePoint(memory_bytes=self.candidates[place].memory.total_bytes, dense_ms=self.candidates[place].ms)
                for place in sorted(shown)
            ),
        )

    def _candidates(self, by_unit: Sequence[Sequence[UnitOption]]) -> tuple[LayoutCandidate, ...]:
        """Return the frontier by the ledger's memory.

        The frontier of sums and maxima counts the largest transients at one moment, which units of different size do
        not need together; the frontier without transients counts none, and that between the passes no reduced
        gradients, which come as gathered weights go. Where the optimizer's temporary tensors need most, checkpointing
        saves nothing. So the first is found with and without it. All are compared by the timeline, and with them the
        layouts that keep all units one way.
        """
        choices = self._frontier(by_unit)
        without = [[option for option in unit if not option.checkpointed] or unit for unit in by_unit]
        if without != [list(unit) for unit in by_unit]:
            choices += self._frontier(without)
        if len(choices) > 1:
            choices += self._frontier(by_unit, at=_without_transients)
            choices += self._frontier(by_unit, at=_between_passes)
            choices += _uniform(self._by_module(by_unit))
        found = self._made(choices)
        points = [
            Point(memory_bytes=each.memory.total_bytes, ms=each.ms, chosen=(index,)) for index, each in enumerate(found)
        ]
        return tuple(found[point.chosen[0]] for point in best(points))

    def _frontier(
        self,
        by_unit: Sequence[Sequence[UnitOption]],
        *,
        at: Callable[[UnitBytes, UnitOption], PricedOption] = UnitBytes.choice,
    ) -> list[tuple[UnitOption, ...]]:
        """Return the choices of the frontier, with the memory of options at some moment."""
        profile = self._profile
        of_units = [UnitBytes.of(unit, profile) for unit in profile.units]
        choices = [[at(own, each) for each in options] for own, options in zip(of_units, by_unit, strict=True)]
        modules = self._by_module(by_unit)
        return [
            tuple(options[number] for options, number in zip(modules, point.chosen, strict=True))
            for point in frontier(choices, [unit.repeats for unit in profile.units])
        ]

    def _by_module(self, by_unit: Sequence[Sequence[UnitOption]]) -> list[Sequence[UnitOption]]:
        units = self._profile.units
        return [options for unit, options in zip(units, by_unit, strict=True) for _ in range(unit.repeats)]

    def _made(self, choices: Sequence[Sequence[UnitOption]]) -> list[LayoutCandidate]:
        return [
            LayoutCandidate(options=tuple(options), memory=memory)
            for options, memory in zip(choices, self.memory(choices), strict=True)
        ]

    def memory(self, choices: Sequence[Sequence[UnitOption]]) -> list[DenseMemory]:
        """Return the memory of modules under each choice of an option for each of them."""
        profile = self._profile
        shape = (len(choices), len(self._bytes))
        shared_by = np.array([[each.shared_by for each in options] for options in choices], np.int64).reshape(shape)

        def left(total: int, parts: Sequence[int]) -> list[int]:
            """Return the rest of a total where each part is shared."""
            whole = np.array(parts, np.int64)
            rest: list[int] = (total - (whole + -whole // shared_by).sum(axis=1)).tolist()
            return rest

        gradients = np.array([own.gradients for own in self._bytes], np.int64)
        shares = (-(-gradients // shared_by) * (shared_by > 1)).sum(axis=1).tolist()
        highest = self._timeline.highest(choices)
        # Shares of gradients are counted from step to step; at the highest moment some are not there yet.
        working = [
            max(moment.working_bytes - share, optimizer, 0)
            for moment, share, optimizer in zip(highest, shares, self._optimizer_bytes(shared_by), strict=True)
        ]
        transient = [
            min(max(moment.collective_bytes - share, 0), most)
            for moment, share, most in zip(highest, shares, working, strict=True)
        ]
        return [
            DenseMemory(
                weights_bytes=weights,
                gradient_bytes=gradient,
                optimizer_state_bytes=optimizer_state,
                activation_bytes=most - for_a_moment,
                transient_bytes=for_a_moment,
            )
            for weights, gradient, optimizer_state, most, for_a_moment in zip(
                left(profile.weights_bytes, [own.weights for own in self._bytes]),
                left(profile.gradient_bytes, [own.gradients for own in self._bytes]),
                left(profile.optimizer_state_bytes, [own.optimizer_state for own in self._bytes]),
                working,
                transient,
                strict=True,
            )
        ]

    def _optimizer_bytes(self, shared_by: NDArray[np.int64]) -> list[int]:
        """Return the optimizer's temporary tensors: of all local parameters together, or of one after the other.

        Args:
            shared_by: [choices, modules] devices that share a module.
        """
        profile = self._profile
        whole = profile.working_bytes if profile.optimizer_working_bytes is None else profile.optimizer_working_bytes
        sizes = np.array([own.weights for own in self._bytes], np.int64)
        shared_by, sizes = shared_by[:, sizes > 0], sizes[sizes > 0]
        if not len(sizes):
            return [whole] * len(shared_by)
        found: list[int]
        if profile.multi_tensor:
            local = np.cumsum(sizes / shared_by, axis=1)[:, -1]  # one after the other: sums in pairs round differently
            found = np.rint(whole * local / sizes.sum()).astype(np.int64).tolist()
        else:
            found = (-(-whole // shared_by.min(axis=1))).tolist()
        return found


def _without_transients(own: UnitBytes, option: UnitOption) -> PricedOption:
    """Return an option where neither collectives nor recomputing take anything for a moment."""
    return replace(own.choice(option), transient_bytes=0, recomputed_bytes=0)


def _between_passes(own: UnitBytes, option: UnitOption) -> PricedOption:
    """Return an option where the backward pass begins: weights of ZeRO-2 are gathered, and no gradients reduced."""
    found = _without_transients(own, option)
    reduced = -(-own.gradients // option.shared_by) if option.shared_by > 1 else 0
    return replace(found, kept_bytes=found.kept_bytes - reduced)


def _uniform(by_module: Sequence[Sequence[UnitOption]]) -> Iterator[tuple[UnitOption, ...]]:
    """Yield the layouts that keep each module one way, and the plainest where it cannot be kept so."""
    for way in dict.fromkeys(_way(option) for options in by_module for option in options):
        yield tuple(next((each for each in options if _way(each) == way), options[0]) for options in by_module)


def _way(option: UnitOption) -> Hashable:
    return option.strategy, option.group, option.checkpointed, option.split

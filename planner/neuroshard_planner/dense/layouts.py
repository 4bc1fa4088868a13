"""Layouts of a dense part that are worth choosing from: their memory as the ledger has it, and their time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuroshard_api.documents.dense_layout import DenseLayout, DenseMemory, DensePoint
from neuroshard_api.documents.dense_profile import DenseProfile

from neuroshard_planner.dense.choice import Point, best
from neuroshard_planner.dense.frontier import frontier
from neuroshard_planner.dense.options import UnitBytes, UnitOption, UnitOptions
from neuroshard_planner.dense.timeline import TimedUnit, Timeline
from neuroshard_planner.errors import RequestError

MOST_POINTS = 200
"""Of a frontier in a plan; the document takes 256."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
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
    def ms(self) -> float:
        """Both."""
        return self.compute_ms + self.exposed_ms

    @property
    def is_plain(self) -> bool:
        """Whether all is replicated, and nothing checkpointed."""
        return all(each.shared_by == 1 and not each.checkpointed for each in self.options)


class Layouts:
    """The candidates of a dense part, by memory.

    Args:
        profile: the dense part.
        options: of its units.
        copies_transfers: whether collectives take a copy of what they transfer, as gloo does on a CPU.

    Raises:
        RequestError: the profile does not name all modules of a unit that repeats.
    """

    def __init__(self, profile: DenseProfile, options: UnitOptions, *, copies_transfers: bool = False) -> None:
        self._profile = profile
        self._units = [unit for unit in profile.units for _ in range(unit.repeats)]
        self._bytes = [UnitBytes.of(unit, profile) for unit in self._units]
        self._modules = tuple(path for unit in profile.units for path in unit.modules)
        if len(self._modules) != len(self._units):
            raise RequestError(
                "dense: the profile does not name the modules of units that repeat; hint: count the dense part "
                "again with this release"
            )
        passes = profile.working_bytes if profile.passes_working_bytes is None else profile.passes_working_bytes
        self._timeline = Timeline(
            [
                TimedUnit.of(unit, module, own)
                for unit, module, own in zip(self._units, self._modules, self._bytes, strict=True)
            ],
            passes_bytes=passes,
            copies_transfers=copies_transfers,
        )
        self.plain = self._candidate([options.replicated(unit) for unit in self._units])
        """All replicated, nothing checkpointed."""
        by_unit = [options.of(unit) for unit in profile.units]
        self.candidates = self._candidates(by_unit)
        """The frontier, as exact as ``frontier`` finds it; the least memory first, the least time last."""

    def layout(self, chosen: Candidate, *, source: str) -> DenseLayout:
        """Write a candidate down, with at most MOST_POINTS of the frontier, at even distances."""
        last = len(self.candidates) - 1
        shown = {round(place * last / (MOST_POINTS - 1)) for place in range(MOST_POINTS)}
        return DenseLayout(
            units=tuple(each.planned(path) for path, each in zip(self._modules, chosen.options, strict=True)),
            num_parameters=self._profile.num_parameters,
            replicated_bytes=self._profile.total_bytes,
            compute_ms=chosen.compute_ms,
            exposed_ms=chosen.exposed_ms,
            replicated_ms=self.plain.ms,
            source=source,
            frontier=tuple(
                DensePoint(memory_bytes=self.candidates[place].memory.total_bytes, dense_ms=self.candidates[place].ms)
                for place in sorted(shown)
            ),
        )

    def _candidates(self, by_unit: Sequence[Sequence[UnitOption]]) -> tuple[Candidate, ...]:
        """Return the frontier by the ledger's memory.

        The frontier of sums and maxima counts the largest transients at one moment, which units of different size do
        not need together; the frontier without transients counts none. Where the optimizer's temporary tensors need
        most, checkpointing saves nothing. So both are found with and without it, and compared by the timeline.
        """
        found = self._frontier(by_unit)
        without = [[option for option in unit if not option.checkpointed] or unit for unit in by_unit]
        if without != [list(unit) for unit in by_unit]:
            found += self._frontier(without)
        if len(found) > 1:
            found += self._frontier(by_unit, has_transients=False)
        points = [
            Point(memory_bytes=each.memory.total_bytes, ms=each.ms, chosen=(index,)) for index, each in enumerate(found)
        ]
        return tuple(found[point.chosen[0]] for point in best(points))

    def _frontier(self, by_unit: Sequence[Sequence[UnitOption]], *, has_transients: bool = True) -> list[Candidate]:
        profile = self._profile
        of_units = [UnitBytes.of(unit, profile) for unit in profile.units]
        choices = [[own.choice(each) for each in options] for own, options in zip(of_units, by_unit, strict=True)]
        if not has_transients:
            choices = [
                [replace(each, transient_bytes=0, recomputed_bytes=0) for each in options] for options in choices
            ]
        expanded = [options for unit, options in zip(profile.units, by_unit, strict=True) for _ in range(unit.repeats)]
        return [
            self._candidate([options[number] for options, number in zip(expanded, point.chosen, strict=True)])
            for point in frontier(choices, [unit.repeats for unit in profile.units])
        ]

    def _candidate(self, options: Sequence[UnitOption]) -> Candidate:
        return Candidate(options=tuple(options), memory=self.memory(options))

    def memory(self, options: Sequence[UnitOption]) -> DenseMemory:
        """Return the memory of modules under an option for each."""
        profile = self._profile

        def left(total: int, parts: Sequence[int]) -> int:
            """Return the rest of a total where each part is shared."""
            saved = sum(part - -(-part // option.shared_by) for part, option in zip(parts, options, strict=True))
            return total - saved

        shares = sum(
            -(-own.gradients // option.shared_by)
            for own, option in zip(self._bytes, options, strict=True)
            if option.shared_by > 1
        )
        highest = self._timeline.highest(options)
        # Shares of gradients are counted from step to step; at the highest moment some are not there yet.
        working = max(highest.working_bytes - shares, self._optimizer_bytes(options), 0)
        transient = min(max(highest.collective_bytes - shares, 0), working)
        return DenseMemory(
            weights_bytes=left(profile.weights_bytes, [own.weights for own in self._bytes]),
            gradient_bytes=left(profile.gradient_bytes, [own.gradients for own in self._bytes]),
            optimizer_state_bytes=left(profile.optimizer_state_bytes, [own.optimizer_state for own in self._bytes]),
            activation_bytes=working - transient,
            transient_bytes=transient,
        )

    def _optimizer_bytes(self, options: Sequence[UnitOption]) -> int:
        """Return the optimizer's temporary tensors: of all local parameters together, or of one after the other."""
        profile = self._profile
        whole = profile.working_bytes if profile.optimizer_working_bytes is None else profile.optimizer_working_bytes
        sizes = [
            (own.weights, option.shared_by) for own, option in zip(self._bytes, options, strict=True) if own.weights
        ]
        if not sizes:
            return whole
        if not profile.multi_tensor:
            return -(-whole // min(shared_by for _, shared_by in sizes))
        local, total = sum(size / shared_by for size, shared_by in sizes), sum(size for size, _ in sizes)
        return round(whole * local / total)

"""The cause of a slow-down, from the pattern of the ranks' times before and since. Pure: values in, changes out.

A rank that waits for a slower one shows the wait in its exchanges and in its dense part. So what a rank computes itself
is compared across ranks; exchanges and the dense part count by their least over all ranks, which has no such wait.

What changed inputs explain is divided out first; causes are looked for in the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.documents.step_report import RankTimes

from neuroshard_trainer.drift.detector import MIN_SHIFT

EXPLAINED_WITHIN: Final = 0.2
"""Compute that is as far above the most that the inputs explain is not explained by them."""
ALIKE_SHARE: Final = 0.4
"""Of the largest excess: ranks with less are not slow alike. A neighbour made parts 2 to 3 times as long."""
MATERIAL_SHARE: Final = 0.5
"""Of the least shift of a step: a part that adds less is not a cause of it."""
CAUSING_SHARE: Final = 0.2
"""Of what the step takes longer: a part that adds less is not a cause next to those that add more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputChange:
    """Tables whose lookups changed."""

    ranks_of_table: Mapping[str, Sequence[int]]
    """Ranks that hold shards, by name of each changed table. Empty: inputs are the same."""
    compute_ratios: Mapping[int, float] = field(default_factory=dict)
    """By rank: the most compute that the new inputs take over that of the old ones; 1 where a rank is missing."""


UNCHANGED_INPUTS: Final = InputChange(ranks_of_table={})


@dataclass(frozen=True, slots=True)
class _Ratio:
    """A time of one rank, or the least over ranks, before and since."""

    part: StepPart
    rank: int | None
    before_ms: float
    since_ms: float

    @property
    def excess(self) -> float:
        """What the part takes longer, as a share; 0 for a part that took no time before or since."""
        return self.since_ms / self.before_ms - 1 if self.before_ms and self.since_ms else 0.0

    @property
    def added_ms(self) -> float:
        return self.since_ms - self.before_ms

    @property
    def evidence(self) -> Evidence:
        return Evidence(part=self.part, rank=self.rank, reference_ms=self.before_ms, recent_ms=self.since_ms)


def causes(
    reference: Sequence[RankTimes],
    recent: Sequence[RankTimes],
    *,
    since_step: int,
    ranks_per_node: int,
    inputs: InputChange = UNCHANGED_INPUTS,
    min_shift: float = MIN_SHIFT,
) -> tuple[DriftChange, ...]:
    """Return the causes of a slow-down, none where the slowest rank's step is not longer by ``min_shift``.

    Args:
        reference: medians before, by rank in ascending order.
        recent: medians since, of the same ranks.
        since_step: as the detector dates the change.
        ranks_per_node: consecutive ranks of one node.
        inputs: what changed in the inputs.
        min_shift: least share of the step that is a change.
    """
    before_ms = max(times.step_ms for times in reference)
    step = _Ratio(StepPart.STEP, None, before_ms, max(times.step_ms for times in recent))
    if not before_ms or step.excess < min_shift:
        return ()
    pattern = _Pattern(reference, recent, step, inputs, min_shift)
    found = [
        *pattern.inputs_drifted(),
        *(
            pattern.everything_slow()
            or [*(pattern.ranks_slow(ranks_per_node) or pattern.dense_slow()), *pattern.communication_slow()]
        ),
        *pattern.data_late(),
    ]
    found = found or pattern.dense_slow_somewhere()
    numbers = [
        (SlowdownCause.UNEXPLAINED, (), [step, *pattern.compute.values(), pattern.output_exchange, pattern.dense])
    ]
    return tuple(
        DriftChange(
            cause=cause,
            ranks=tuple(ranks),
            tables=tuple(sorted(inputs.ranks_of_table)) if cause is SlowdownCause.INPUTS_DRIFTED else (),
            since_step=since_step,
            evidence=tuple(each.evidence for each in evidence),
            confidence=0.0 if cause is SlowdownCause.UNEXPLAINED else _accounted_share(evidence, step),
        )
        for cause, ranks, evidence in (found or numbers)
    )


_Found = list[tuple[SlowdownCause, Sequence[int], list[_Ratio]]]


class _Pattern:
    """The times that tell causes apart."""

    def __init__(
        self,
        reference: Sequence[RankTimes],
        recent: Sequence[RankTimes],
        step: _Ratio,
        inputs: InputChange,
        min_shift: float,
    ) -> None:
        pairs = list(zip(reference, recent, strict=True))
        self.step, self.inputs, self.min_shift = step, inputs, min_shift
        self.pairs = {before.rank: (before, since) for before, since in pairs}
        self.compute = {
            before.rank: _Ratio(StepPart.COMPUTE, before.rank, _compute_ms(before), _compute_ms(since))
            for before, since in pairs
        }
        self.waits = {
            before.rank: _Ratio(StepPart.DATA_WAIT, before.rank, before.data_wait_ms, since.data_wait_ms)
            for before, since in pairs
        }
        self.input_exchange = _Ratio(
            StepPart.INPUT_EXCHANGE,
            None,
            min(each.input_communication_ms for each in reference),
            min(each.input_communication_ms for each in recent),
        )
        self.output_exchange = _Ratio(
            StepPart.OUTPUT_EXCHANGE, None, min(map(_output_ms, reference)), min(map(_output_ms, recent))
        )
        self.dense = _Ratio(
            StepPart.DENSE, None, min(each.dense_ms for each in reference), min(each.dense_ms for each in recent)
        )
        self.dense_of_rank = {
            before.rank: _Ratio(StepPart.DENSE, before.rank, before.dense_ms, since.dense_ms) for before, since in pairs
        }
        self.rest = {rank: self._unexplained(ratio) for rank, ratio in self.compute.items()}

    def inputs_drifted(self) -> _Found:
        """Find changed tables on ranks whose compute, or the exchange of indices, is up as they explain."""
        holders = sorted({rank for ranks in self.inputs.ranks_of_table.values() for rank in ranks})
        slow = [rank for rank in holders if self._is_up(self.compute[rank])]
        explained = [
            rank
            for rank in slow
            if self._explained(rank) >= 1 + self.min_shift and self.rest[rank].excess <= EXPLAINED_WITHIN
        ]
        if explained:
            return [(SlowdownCause.INPUTS_DRIFTED, explained, [self.compute[rank] for rank in explained])]
        if holders and not slow and self._is_up(self.input_exchange):
            return [(SlowdownCause.INPUTS_DRIFTED, holders, [self.input_exchange])]
        return []

    def everything_slow(self) -> _Found:
        """Find all ranks slow alike, in compute and in the dense part, as the step is."""
        least, most = min(self._excesses()), max(self._excesses())
        has_dense = self.dense.before_ms >= self.min_shift * self.step.before_ms
        if least < max(self._threshold(), ALIKE_SHARE * max(most, self.step.excess)):
            return []
        if has_dense and self.dense.excess < max(self.min_shift, ALIKE_SHARE * self.step.excess):
            return []
        return [(SlowdownCause.EVERYTHING_SLOW, (), [*self.compute.values(), self.dense, self.output_exchange])]

    def ranks_slow(self, ranks_per_node: int) -> _Found:
        """Find ranks that compute slower than their peers, forward and backward."""
        excesses = dict(zip(self.rest, self._excesses(), strict=True))
        limit = max(self._threshold(), ALIKE_SHARE * max(excesses.values()))
        slow = [
            rank
            for rank, excess in excesses.items()
            if excess >= limit and self._is_up(self.rest[rank]) and self._is_slow_both_ways(rank)
        ]
        if not slow or len(slow) == len(excesses):
            return []
        nodes = {rank // ranks_per_node for rank in slow}
        is_node = len(slow) == ranks_per_node > 1 and len(nodes) == 1
        cause = SlowdownCause.NODE_SLOW if is_node else SlowdownCause.DEVICE_SLOW
        return [(cause, slow, [self.compute[rank] for rank in slow])]

    def communication_slow(self) -> _Found:
        """Find exchanges that take longer than their inputs explain."""
        exchanges = [self.output_exchange]
        if not self.inputs.ranks_of_table:
            exchanges.append(self.input_exchange)
        slow = [each for each in exchanges if self._is_up(each)]
        return [(SlowdownCause.COMMUNICATION_SLOW, (), slow)] if slow else []

    def dense_slow(self) -> _Found:
        """Find a dense part that takes longer on every rank; asked where no rank's lookups are slow."""
        return [(SlowdownCause.DENSE_SLOW, (), [self.dense])] if self._is_up(self.dense) else []

    def dense_slow_somewhere(self) -> _Found:
        """Find ranks whose dense part takes longer; asked where there is no other cause.

        Where any rank's lookups take longer, others wait for it in their dense part.
        """
        if any(map(self._is_up, self.rest.values())):
            return []
        slow = [rank for rank, ratio in self.dense_of_rank.items() if self._is_up(ratio)]
        return [(SlowdownCause.DENSE_SLOW, slow, [self.dense_of_rank[rank] for rank in slow])] if slow else []

    def data_late(self) -> _Found:
        """Find ranks that wait for their batches."""
        late = [rank for rank, wait in self.waits.items() if self._is_material(wait)]
        return [(SlowdownCause.DATA_LATE, late, [self.waits[rank] for rank in late])] if late else []

    def _explained(self, rank: int) -> float:
        return self.inputs.compute_ratios.get(rank, 1.0) if self.inputs.ranks_of_table else 1.0

    def _unexplained(self, ratio: _Ratio) -> _Ratio:
        """Return a rank's compute beyond the most that inputs explain; what is below that they explain as well."""
        assert ratio.rank is not None, "compute is of a rank"
        explained_ms = ratio.before_ms * self._explained(ratio.rank)
        return _Ratio(ratio.part, ratio.rank, max(ratio.before_ms, min(explained_ms, ratio.since_ms)), ratio.since_ms)

    def _threshold(self) -> float:
        """Return the least excess of compute that needs a cause besides changed inputs."""
        return EXPLAINED_WITHIN if self.inputs.ranks_of_table else self.min_shift

    def _excesses(self) -> list[float]:
        return [ratio.excess for ratio in self.rest.values()]

    def _is_up(self, ratio: _Ratio) -> bool:
        return ratio.excess >= self.min_shift and self._is_material(ratio)

    def _is_material(self, ratio: _Ratio) -> bool:
        least_ms = MATERIAL_SHARE * self.min_shift * self.step.before_ms
        return ratio.added_ms >= max(least_ms, CAUSING_SHARE * self.step.added_ms)

    def _is_slow_both_ways(self, rank: int) -> bool:
        before, since = self.pairs[rank]
        ways = (
            (before.forward_compute_ms, since.forward_compute_ms),
            (before.backward_compute_ms, since.backward_compute_ms),
        )
        rest = (self._unexplained(_Ratio(StepPart.COMPUTE, rank, *way)) for way in ways)
        return min(each.excess for each in rest) >= self.min_shift


def _accounted_share(evidence: Sequence[_Ratio], step: _Ratio) -> float:
    """Return the share of what the step takes longer that the parts add, of each part on the rank where it is most."""
    added_ms: dict[StepPart, float] = {}
    for each in evidence:
        added_ms[each.part] = max(each.added_ms, added_ms.get(each.part, 0.0))
    return round(min(1.0, sum(added_ms.values()) / step.added_ms), 3)


def _compute_ms(times: RankTimes) -> float:
    return times.forward_compute_ms + times.backward_compute_ms


def _output_ms(times: RankTimes) -> float:
    return times.forward_communication_ms + times.backward_communication_ms

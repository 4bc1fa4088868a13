"""The cause of a slow-down, from the pattern of the ranks' times before and since. Pure: values in, changes out.

A rank that waits for a slower one shows the wait in its exchanges and in its dense part. So what a rank computes itself
is compared across ranks; exchanges and the dense part count by their least over all ranks, which has no such wait.

Changed lookups come first: what they can add to a rank's compute at most is theirs, and other causes are looked for in
the rest. That bound errs, by caches and by programs on the same cores, so a rest that is less than what the inputs
explain of the same rank names no device. Inputs are named where they alone make steps longer by the least shift,
however slow the machine became, and where nothing else explains slower steps. Their share tells how much they explain,
and a plan for them has to promise its gain before anything restarts. Other causes follow by the share that they add.

Where processes compute on the host, other programs on its cores lengthen all parts, most of all exchanges, in which
ranks wait for those that have no core. Steps that are longer by no more than the waiting for processors explains are
slow by that alone. What the same waiting makes of a step also varies: work that has a core for a share of the time
takes the inverse of that share as long, so that the least shift that has a cause grows by that inverse. Changed lookups
have evidence other than times, and keep the least shift.
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


_LEAST_PROCESSOR_SHARE: Final = 0.05
"""Of a rank that nearly always waits, steps twice as long are a change."""


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

    On hosts whose processors are shared, only changed inputs are named up to ``min_shift`` over the least share of time
    for which a rank had a processor.

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
    is_clear = step.excess >= min_shift / _processor_share([*reference, *recent])
    others: _Found = []
    if is_clear:
        others = [
            *(
                pattern.processors_taken()
                or pattern.everything_slow()
                or [*(pattern.ranks_slow(ranks_per_node) or pattern.dense_slow()), *pattern.communication_slow()]
            ),
            *([] if pattern.processors_taken() else pattern.data_late()),
        ]
    others.sort(key=lambda each: -pattern.accounted_share(each[0], each[2]))
    found = [*pattern.inputs_drifted(), *others]
    if not found and is_clear:
        found = pattern.dense_slow_somewhere() or pattern.unexplained()
    return tuple(
        DriftChange(
            cause=cause,
            ranks=tuple(ranks),
            tables=tuple(sorted(inputs.ranks_of_table)) if cause is SlowdownCause.INPUTS_DRIFTED else (),
            since_step=since_step,
            evidence=tuple(each.evidence for each in evidence),
            confidence=pattern.accounted_share(cause, evidence),
        )
        for cause, ranks, evidence in found
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
        self.explained = {rank: self._explained(ratio) for rank, ratio in self.compute.items()}
        self.rest = {rank: self._unexplained(ratio) for rank, ratio in self.compute.items()}
        self.holders = sorted({rank for ranks in inputs.ranks_of_table.values() for rank in ranks})
        """Ranks of changed tables."""

    def inputs_drifted(self) -> _Found:
        """Find changed tables that alone make the step longer by the least shift, by compute or by exchange."""
        if not self.holders:
            return []
        least_ms = self.min_shift * self.step.before_ms
        explained = [rank for rank in self.holders if self.explained[rank].added_ms >= least_ms]
        evidence = [self.compute[rank] for rank in explained]
        if self._is_up(self.input_exchange):
            evidence.append(self.input_exchange)
        return [(SlowdownCause.INPUTS_DRIFTED, explained or self.holders, evidence)] if evidence else []

    def processors_taken(self) -> _Found:
        """Find steps that are longer by no more than the ranks' waiting for processors makes them.

        Work that has a core for a share of the time takes the inverse of that share as long.
        """
        growth = max((_waiting_growth(*pair) for pair in self.pairs.values()), default=1.0)
        if growth < 1 + self.min_shift or self.step.excess > growth - 1:
            return []
        return [(SlowdownCause.EVERYTHING_SLOW, (), [*self.compute.values(), self.dense, self.output_exchange])]

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
            if excess >= limit
            and self._is_up(self.rest[rank])
            and self.rest[rank].added_ms > self.explained[rank].added_ms
            and self._is_slow_both_ways(rank)
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
        """Find a dense part that takes longer on every rank; asked where no rank's lookups are slow.

        It is the rest of the step: with more lookups, the host also copies and permutes more in it.
        """
        of_inputs_ms = max((self.explained[rank].added_ms for rank in self.holders), default=0.0)
        is_slow = self._is_up(self.dense) and self.dense.added_ms > of_inputs_ms
        return [(SlowdownCause.DENSE_SLOW, (), [self.dense])] if is_slow else []

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

    def unexplained(self) -> _Found:
        """Find changed inputs whatever they explain; without them, nothing that is known."""
        if self.holders:
            return [(SlowdownCause.INPUTS_DRIFTED, self.holders, [self.compute[rank] for rank in self.holders])]
        numbers = [self.step, *self.compute.values(), self.output_exchange, self.dense]
        return [(SlowdownCause.UNEXPLAINED, (), numbers)]

    def accounted_share(self, cause: SlowdownCause, evidence: Sequence[_Ratio]) -> float:
        """Return the share of what the step takes longer that a cause adds, of each part on the rank with most of it.

        Of a rank's compute, what inputs explain is theirs, and the rest is that of other causes.
        """
        if cause is SlowdownCause.UNEXPLAINED:
            return 0.0
        of_compute = self.explained if cause is SlowdownCause.INPUTS_DRIFTED else self.rest
        added_ms: dict[StepPart, float] = {}
        for each in evidence:
            own = of_compute[each.rank] if each.part is StepPart.COMPUTE and each.rank is not None else each
            added_ms[each.part] = max(own.added_ms, added_ms.get(each.part, 0.0))
        return round(min(1.0, sum(added_ms.values()) / self.step.added_ms), 3)

    def _explained(self, ratio: _Ratio) -> _Ratio:
        """Return the part of a rank's compute that inputs explain: up to the most that they can make of it."""
        assert ratio.rank is not None, "compute is of a rank"
        factor = self.inputs.compute_ratios.get(ratio.rank, 1.0) if self.inputs.ranks_of_table else 1.0
        explained_ms = max(ratio.before_ms, min(ratio.before_ms * factor, ratio.since_ms))
        return _Ratio(ratio.part, ratio.rank, ratio.before_ms, explained_ms)

    def _unexplained(self, ratio: _Ratio) -> _Ratio:
        """Return a rank's compute beyond the most that inputs explain; what is below that they explain as well."""
        return _Ratio(ratio.part, ratio.rank, self._explained(ratio).since_ms, ratio.since_ms)

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


def _processor_share(ranks: Sequence[RankTimes]) -> float:
    """Return the least share of time in which a rank could run and had a processor; 1 on devices, or if unknown."""
    if any(times.host_bound is not None for times in ranks):
        return 1.0
    return max(_LEAST_PROCESSOR_SHARE, min(1 - (times.processor_wait_share or 0.0) for times in ranks))


def _waiting_growth(before: RankTimes, since: RankTimes) -> float:
    """Return the ratio by which more waiting for processors lengthens work; 1 on devices, or if unknown."""
    is_known = before.processor_wait_share is not None and since.processor_wait_share is not None
    shares = [1 - (times.processor_wait_share or 0.0) for times in (before, since)]
    computes_on_host = since.host_bound is None
    return shares[0] / shares[1] if is_known and computes_on_host and shares[1] else 1.0


def _compute_ms(times: RankTimes) -> float:
    return times.forward_compute_ms + times.backward_compute_ms


def _output_ms(times: RankTimes) -> float:
    return times.forward_communication_ms + times.backward_communication_ms

"""The loss and the data of a training: what is lastingly other than at the start, with column and range of samples.

    labels of each step, loss and label rate of each report -> constant, another rate, a rise
    one batch in 100: empty lists, ids, dense columns       -> missing values, ids outside, another distribution

The first three of each are the reference. Nothing follows from a finding: it is logged, and shown with the progress.
"""

import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
from neuroshard_api.documents.counts import Count
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.finding import MAX_FINDINGS, DataFinding, FindingKind
from neuroshard_api.documents.input_statistics import InputStatistics
from numpy.typing import NDArray

from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.data_columns import DataColumns
from neuroshard_trainer.drift.columns import (
    MIN_MOVED,
    MIN_NULLS,
    ColumnReference,
    DenseColumns,
    FloatArray,
    ShareReference,
    ShareWatch,
    counted_samples,
)
from neuroshard_trainer.drift.input_statistics import HELD_SAMPLES, BatchCounts
from neuroshard_trainer.drift.input_watch import REFERENCE_SAMPLES, SAMPLED_EVERY
from neuroshard_trainer.drift.labels import HELD_INTERVALS, LabelState, LabelWatch
from neuroshard_trainer.drift.rise import USUAL_VALUES, RiseDetector, RiseState

logger = logging.getLogger(__name__)
_Key = tuple[FindingKind, str | None]
_OF_REPORTS: Final = frozenset(
    {FindingKind.LOSS_ROSE, FindingKind.ENTROPY_ROSE, FindingKind.LABELS_CONSTANT, FindingKind.LABEL_RATE_MOVED}
)
_OF_INPUTS: Final = frozenset({FindingKind.LOOKUPS_MOVED, FindingKind.ROWS_REPEAT, FindingKind.LISTS_REPEAT})
"""Of a feature that is other than before in several sampled batches in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCount:
    """Training samples used before a step."""

    first_step: int
    first_sample: int
    per_step: int
    """Of all ranks."""

    def before(self, step: int) -> int:
        """Return the samples used before a step of this start or an earlier one under the same size of steps."""
        return max(0, self.first_sample + (step - self.first_step) * self.per_step)


class DataState(Value):
    """What the watch knows."""

    labels: LabelState = LabelState()
    loss: RiseState = RiseState()
    entropy: RiseState = RiseState()
    dense: ColumnReference | None = None
    features: tuple[str, ...] = ()
    """Those of the references, by name."""
    empty: ShareReference = ShareReference()
    """By feature, samples without lookups."""
    most: ShareReference = ShareReference()
    """Likewise, lookups of the row that is looked up most."""
    num_steps: Count = 0
    """Steps of the training that reports and sampled batches have shown."""
    report_steps: tuple[Count, ...] = ()
    """First step of each of the last reports."""
    findings: tuple[DataFinding, ...] = ()

    def before(self, step: int) -> Self:
        """Return the state where training goes on from a step: without what was seen and found after it.

        References stay. The level of the loss is that of later steps, and is learned again.
        """
        if self.num_steps <= step:
            return self
        return self.model_copy(
            update={
                "labels": self.labels.before(step),
                "loss": RiseState(largest=self.loss.largest),
                "entropy": RiseState(largest=self.entropy.largest),
                "num_steps": step,
                "report_steps": tuple(each for each in self.report_steps if each < step),
                "findings": tuple(
                    each.model_copy(update={"until_step": None}) if (each.until_step or 0) >= step else each
                    for each in self.findings
                    if each.last_step < step
                ),
            }
        )


class DataWatch:
    """Watches the labels and dense columns of this rank, and the loss of all.

    Args:
        columns: names of the data's.
        samples: that the steps use. None: not known.
        state: of an earlier start of the run. If unset: the first batches and reports are the reference.
    """

    def __init__(
        self, columns: DataColumns | None = None, samples: SampleCount | None = None, state: DataState | None = None
    ) -> None:
        state = state or DataState()
        begun = 0 if samples is None else samples.first_step
        state = state if samples is None else state.before(begun)
        self._columns = columns or DataColumns()
        self._samples = samples
        self._labels = LabelWatch(state.labels)
        self._loss, self._entropy = RiseDetector(state.loss), RiseDetector(state.entropy)
        self._fills: FloatArray = np.array(self._columns.fills, dtype=np.float64)
        self._dense = None if state.dense is None else DenseColumns(self._fills, state.dense)
        self._first_dense: list[NDArray[np.float32]] = []
        self._features = state.features
        self._empty = ShareWatch(MIN_NULLS, REFERENCE_SAMPLES, state.empty)
        self._most = ShareWatch(MIN_MOVED, REFERENCE_SAMPLES, state.most)
        self._lasting: dict[_Key, DataFinding] = {
            (each.kind, each.column): each for each in state.findings if each.until_step is None
        }
        self._ended = [each for each in state.findings if each.until_step is not None]
        self._kept: tuple[int, torch.Tensor] | None = None
        self._next_sampled = self._next_reported = begun
        """First step after the last sampled batch, and after the last report."""
        self._report_steps = deque(state.report_steps, maxlen=USUAL_VALUES)
        """First steps of the last reports: a rise that is found may have begun as many ago."""
        self._sample_steps = deque[int](maxlen=HELD_SAMPLES)
        """First steps after which the last sampled batches of this start were."""

    @property
    def findings(self) -> tuple[DataFinding, ...]:
        """What is or was wrong, the newest last; of too many the newest."""
        found = sorted((*self._ended, *self._lasting.values()), key=lambda each: each.last_step)
        return tuple(found[-MAX_FINDINGS:])

    @property
    def state(self) -> DataState:
        """What the watch knows: another that starts from it finds the same."""
        return DataState(
            labels=self._labels.state,
            loss=self._loss.state,
            entropy=self._entropy.state,
            dense=None if self._dense is None else self._dense.reference,
            features=self._features,
            empty=self._empty.reference,
            most=self._most.reference,
            num_steps=max(self._next_reported, self._next_sampled),
            report_steps=tuple(self._report_steps),
            findings=self.findings,
        )

    def offer(self, step: int, batch: object) -> None:
        """Take in the labels of a step's batch, and keep its dense columns where it is sampled."""
        if isinstance(batch, Batch):
            self._labels.add(step, batch.num_positive, batch.num_real)
            if step % SAMPLED_EVERY == SAMPLED_EVERY - 1:
                self._kept = step, batch.dense

    def add_report(self, step: int, loss: float, *, num_positive: int, num_samples: int) -> None:
        """Take in the mean loss and the labels of all ranks since the report before; ``step`` is the last one."""
        self._report_steps.append(min(step, self._next_reported))
        found: dict[_Key, DataFinding] = {}

        def note(kind: FindingKind, before: float | None, now: float, *, first: int, column: str | None = None) -> None:
            found[kind, column] = self._finding(kind, column, first, step, before=before, now=now)

        label = self._columns.label
        constant, ended = self._labels.constant, self._labels.take_ended()
        if constant is None and (FindingKind.LABELS_CONSTANT, label) not in self._lasting:
            constant = ended
        rate = self._labels.moved_rate(num_positive, num_samples)
        if constant is not None:
            value, begun, share = constant
            note(FindingKind.LABELS_CONSTANT, share, value, first=begun, column=label)
        elif rate is not None:
            note(FindingKind.LABEL_RATE_MOVED, *rate, first=self._reported_since(HELD_INTERVALS), column=label)
        level = self._loss.add(loss)
        if level is not None:
            note(FindingKind.LOSS_ROSE, level, loss, first=self._reported_since(self._loss.num_risen))
        if 0 < num_positive < num_samples:
            entropy = loss / _entropy(num_positive / num_samples)
            level = self._entropy.add(entropy)
            if level is not None:
                first = self._reported_since(self._entropy.num_risen)
                note(FindingKind.ENTROPY_ROSE, level, entropy, first=first)
        self._next_reported = step + 1
        self._take(step, found, _OF_REPORTS)

    def _reported_since(self, num_reports: int) -> int:
        """Return the first step of the last reports, at most as many as are known."""
        return self._report_steps[-min(num_reports, len(self._report_steps))]

    def add_sample(
        self,
        step: int,
        counts: BatchCounts,
        *,
        rows: Mapping[str, int],
        inputs: tuple[InputStatistics | None, InputStatistics | None],
        without_repeats: Iterable[str] = (),
    ) -> None:
        """Take in a sampled batch.

        Args:
            step: of the batch.
            counts: of its lookups.
            rows: of the features' tables. Of a feature that is not there they are not known.
            inputs: statistics of the first sampled batches, and of the last ones.
            without_repeats: features with empty lists in the place of repeats.
        """
        self._sample_steps.append(min(step, self._next_sampled))
        facts = [*_outside(counts, rows), *self._shares_moved(counts, set(without_repeats)), *self._dense_facts(step)]
        explained = {column for kind, column, *_ in facts if kind is not FindingKind.IDS_OUTSIDE}
        facts += [fact for fact in _moved_features(*inputs) if fact[1] not in explained]
        found: dict[_Key, DataFinding] = {}
        for kind, column, before, now in facts:
            first = self._sample_steps[0 if kind in _OF_INPUTS else -1]
            found[kind, column] = self._finding(kind, column, first, step, before=before, now=now)
        if len(self._sample_steps) < HELD_SAMPLES:  # too few since this start to find such features again
            found = {key: each for key, each in self._lasting.items() if key[0] in _OF_INPUTS} | found
        self._next_sampled = step + 1
        self._take(step, found, frozenset(FindingKind) - _OF_REPORTS)

    def _dense_facts(self, step: int) -> "list[_Fact]":
        """Return the findings of the dense columns of the sampled batch."""
        dense, names = self._dense_of(step), self._columns.dense
        if dense is None:
            return []
        if self._dense is None:
            self._first_dense.append(dense)
            if len(self._first_dense) == REFERENCE_SAMPLES:
                self._dense = DenseColumns.of(self._first_dense, self._fills)
                self._first_dense = []
            return []
        nulls = self._dense.nulls(dense)
        moved = {column: each for column, each in self._dense.moved(dense).items() if column not in nulls}
        return [
            *((FindingKind.NULLS_ROSE, names[column], *shares) for column, shares in nulls.items()),
            *((FindingKind.VALUES_MOVED, names[column], 0.0, each) for column, each in moved.items()),
        ]

    def _dense_of(self, step: int) -> NDArray[np.float32] | None:
        """Return the counted dense values of the sampled batch; None where there are none, or not as many as before."""
        kept, self._kept = self._kept, None
        if kept is None or kept[0] != step or kept[1].shape[1] != len(self._columns.dense) or not kept[1].numel():
            return None
        dense: NDArray[np.float32] = kept[1][: counted_samples(kept[1].shape[1])].numpy(force=True)
        if self._first_dense and len(dense) != len(self._first_dense[0]):
            self._first_dense = []
        return dense

    def _shares_moved(self, counts: BatchCounts, without_repeats: set[str]) -> "list[_Fact]":
        """Return the features of which more samples look nothing up, and those whose most frequent row is otherwise."""
        names = tuple(sorted(counts))  # batches of another plan have them in another order
        if self._features and names != self._features:
            self._empty = ShareWatch(MIN_NULLS, REFERENCE_SAMPLES, ShareReference())
            self._most = ShareWatch(MIN_MOVED, REFERENCE_SAMPLES, ShareReference())
        self._features = names
        each = [counts[name] for name in names]
        samples = np.array([feature.samples for feature in each])
        lookups = np.array([feature.counted_lookups for feature in each])
        empty = 1 - np.array([feature.filled_lists for feature in each]) / samples
        most = np.array([feature.most_lookups for feature in each]) / np.maximum(1, lookups)
        empty_before, most_before = self._empty.reference.shares, self._most.reference.shares
        are_alike = np.array([feature.are_alike for feature in each])
        is_emptier = self._empty.add(empty, samples, are_alike)
        counted = np.minimum(lookups, [feature.counted_samples for feature in each])
        has_moved = self._most.add(most, counted, are_alike)
        facts: list[_Fact] = []
        for at, name in enumerate(names):
            if is_emptier[at] and empty[at] > empty_before[at] and name not in without_repeats:
                facts.append((FindingKind.NULLS_ROSE, name, empty_before[at], float(empty[at])))
            elif has_moved[at] and lookups[at]:
                facts.append((FindingKind.VALUES_MOVED, name, 0.0, abs(float(most[at]) - most_before[at])))
        return facts

    def _finding(
        self, kind: FindingKind, column: str | None, first: int, last: int, *, before: float | None, now: float
    ) -> DataFinding:
        samples = self._samples
        last = max(first, last)  # batches are taken in ahead of their steps
        return DataFinding(
            kind=kind,
            column=column,
            first_step=first,
            last_step=last,
            first_sample=None if samples is None else samples.before(first),
            last_sample=None if samples is None else samples.before(last + 1) - 1,
            before=before,
            now=now,
        )

    def _take(self, step: int, found: Mapping[_Key, DataFinding], kinds: frozenset[FindingKind]) -> None:
        """Take in what a report, or a sampled batch, finds; what it could have found and did not has ended."""
        for key in [each for each in self._lasting if each[0] in kinds and each not in found]:
            self._ended.append(self._lasting.pop(key).model_copy(update={"until_step": step}))
            self._ended = self._ended[-MAX_FINDINGS:]
            logger.info("%s", self._ended[-1].text)
        new = [finding for key, finding in found.items() if key not in self._lasting]
        for finding in new[:MAX_FINDINGS]:
            logger.warning("%s", finding.text)
        if len(new) > MAX_FINDINGS:
            logger.warning("%d more columns are like that", len(new) - MAX_FINDINGS)
        self._lasting |= {(finding.kind, finding.column): finding for finding in new}


def _entropy(rate: float) -> float:
    """Return the cross entropy, in nats, of predicting the rate for each label."""
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


_Fact = tuple[FindingKind, str, float, float]
"""Kind, column, and the number before and now."""


def _outside(counts: BatchCounts, rows: Mapping[str, int]) -> list[_Fact]:
    """Return the features with a row that their table does not have."""
    return [
        (FindingKind.IDS_OUTSIDE, name, rows[name], each.lowest_row if each.lowest_row < 0 else each.highest_row)
        for name, each in counts.items()
        if name in rows and (each.lowest_row < 0 or each.highest_row >= rows[name])
    ]


def _moved_features(before: InputStatistics | None, recent: InputStatistics | None) -> list[_Fact]:
    """Return the features that changed, the statistic that did, and its means before and now."""
    if before is None or recent is None or not recent.changed_features:
        return []
    reference = {each.feature: each for each in before.features}
    found: list[_Fact] = []
    for each in recent.features:
        if each.feature not in recent.changed_features:
            continue
        usual = reference[each.feature]
        statistics = (
            (FindingKind.LOOKUPS_MOVED, usual.lookups_per_sample, each.lookups_per_sample),
            (FindingKind.ROWS_REPEAT, usual.distinct_rows_per_lookup, each.distinct_rows_per_lookup),
            (FindingKind.LISTS_REPEAT, usual.distinct_lists_per_sample, each.distinct_lists_per_sample),
        )
        kind, usually, now = max(statistics, key=lambda of: abs(math.log((of[2] + _TINY) / (of[1] + _TINY))))
        found.append((kind, each.feature, usually, now))
    return found


_TINY: Final = 1e-9

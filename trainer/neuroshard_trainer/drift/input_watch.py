"""The inputs of a training: samples one batch in 100, and notices features that are lastingly others than at its begin.

A batch is kept until the next report and counted there, where the host waits for the device anyway.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Final

import numpy as np
from neuroshard_api.documents.input_statistics import InputStatistics
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.drift.input_statistics import (
    HELD_SAMPLES,
    BatchCounts,
    InputDrift,
    counts_of,
    reuse_histograms,
    statistics_of,
)
from neuroshard_trainer.ranks.run_identity import RunIdentity

SAMPLED_EVERY: Final = 100
"""Batches of which one is sampled: the last of each hundred."""
REFERENCE_SAMPLES: Final = 3
"""Sampled batches that later ones are compared with."""
RECENT_SAMPLES: Final = 10
"""Sampled batches that statistics are means over."""
COUNTED_LOOKUPS: Final = 32_768
"""Lookups of a batch, over all features, in which distinct rows and lists are counted, if these are enough samples."""
MIN_COUNTED_SAMPLES: Final = 64
HISTOGRAM_SAMPLES: Final = 4
"""Sampled batches after a change whose reuse is counted in full, for the features that changed."""


class InputWatch:
    """Watches the batches of one rank.

    Args:
        run: that is watched.
        reference: statistics of an earlier start of the run. If unset: the first sampled batches give them.
    """

    def __init__(self, run: RunIdentity, *, reference: InputStatistics | None = None) -> None:
        self._run = run
        self.reference = reference
        """What later batches are compared with. None: not known yet."""
        self._drift = None if reference is None else InputDrift(reference)
        self._kept: tuple[int, KeyedJaggedTensor] | None = None
        self._recent: deque[tuple[int, BatchCounts]] = deque(maxlen=RECENT_SAMPLES)
        self._changed: tuple[str, ...] = ()
        self._histograms: dict[str, NDArray[np.float64]] = {}
        """Sums over batches, by feature."""
        self._num_histograms = 0
        self._has_alike = reference is None
        self._num_others = 0
        self.recent: InputStatistics | None = None
        """Of the batches sampled last. None: none was counted yet."""
        self.counted: tuple[int, BatchCounts] | None = None
        """Step and counts of the last one of them."""

    def offer(self, step: int, batch: object) -> None:
        """Keep the batch of a step where it is sampled and has lookups in it."""
        if step % SAMPLED_EVERY == SAMPLED_EVERY - 1:
            lookups = lookups_in(batch)
            if lookups is not None:
                self._kept = step, lookups

    def count(self) -> InputStatistics | None:
        """Count the kept batch; return the statistics of the recent ones, None where no batch was kept."""
        if self._kept is None:
            return None
        (step, lookups), self._kept = self._kept, None
        counts = counts_of(lookups, counted_samples=self._counted_samples(lookups))
        if not self._is_alike(counts):
            self._num_others += 1
            return None
        self._has_alike = True
        self.counted = step, counts
        self._recent.append(self.counted)
        if self._drift is not None:
            self._compare(counts, lookups)
        elif len(self._recent) == REFERENCE_SAMPLES:
            self.reference = self._statistics()
            self._drift = InputDrift(self.reference)
        self.recent = self._statistics()
        return self.recent

    @property
    def are_others(self) -> bool:
        """Whether an earlier start's reference is of other sizes or features than all of the batches since."""
        return not self._has_alike and self._num_others >= REFERENCE_SAMPLES

    def num_counted_since(self, step: int) -> int:
        """Return the number of recent sampled batches of this step or later ones."""
        return sum(each >= step for each, _ in self._recent)

    def _is_alike(self, counts: BatchCounts) -> bool:
        """Whether features and samples are those of the batches before; the last batch of an epoch may have fewer."""
        if self.reference is not None:
            names = tuple(each.feature for each in self.reference.features)
            return _sizes(counts) == (self.reference.batch_size, self.reference.counted_samples, names)
        if self._recent and _sizes(counts) != _sizes(self._recent[-1][1]):
            self._recent.clear()  # one of them is odd; the next ones show which
        return True

    def _compare(self, counts: BatchCounts, lookups: KeyedJaggedTensor) -> None:
        assert self._drift is not None, "asked by count"
        changed = self._drift.add(counts)
        if changed != self._changed:
            self._changed, self._histograms, self._num_histograms = changed, {}, 0
            self._recent = deque(list(self._recent)[-HELD_SAMPLES:], maxlen=RECENT_SAMPLES)
        if changed and self._num_histograms < HISTOGRAM_SAMPLES:
            for name, shares in reuse_histograms(lookups, changed).items():
                self._histograms[name] = self._histograms.get(name, 0.0) + shares
            self._num_histograms += 1

    def _statistics(self) -> InputStatistics:
        return statistics_of(
            [counts for _, counts in self._recent],
            run=self._run,
            first_step=self._recent[0][0],
            last_step=self._recent[-1][0],
            changed=self._changed,
            histograms=_shares(self._histograms),
        )

    def _counted_samples(self, lookups: KeyedJaggedTensor) -> int:
        """Return the number of counted samples: always as many as in the reference's batches."""
        if self.reference is not None:
            return self.reference.counted_samples
        if self._recent:
            return next(iter(self._recent[-1][1].values())).counted_samples
        num_samples = int(lookups.stride())
        per_sample = max(1.0, lookups.values().numel() / max(1, num_samples))
        return min(num_samples, max(MIN_COUNTED_SAMPLES, int(COUNTED_LOOKUPS / per_sample)))


def lookups_in(batch: object) -> KeyedJaggedTensor | None:
    """Return the lookups of a batch: itself, or the first of its fields, entries, or values that is one.

    None: there are none, or their features have different numbers of samples.
    """
    if isinstance(batch, Batch):
        batch = batch.lookups_by_sample
    found = batch if isinstance(batch, KeyedJaggedTensor) else next(_lookups(batch), None)
    if found is None or found.variable_stride_per_key() or not found.keys() or not found.stride():
        return None
    return found


def _lookups(batch: object) -> Iterator[KeyedJaggedTensor]:
    parts: Sequence[object] = ()
    if is_dataclass(batch):
        parts = [getattr(batch, field.name) for field in fields(batch)]
    elif isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        parts = batch
    elif hasattr(batch, "__dict__"):
        parts = list(vars(batch).values())
    return (part for part in parts if isinstance(part, KeyedJaggedTensor))


def _sizes(counts: BatchCounts) -> tuple[int, int, tuple[str, ...]]:
    first = next(iter(counts.values()))
    return first.samples, first.counted_samples, tuple(counts)


def _shares(sums: Mapping[str, NDArray[np.float64]]) -> dict[str, list[float]]:
    return {name: [round(float(each), 6) for each in total / total.sum()] for name, total in sums.items()}

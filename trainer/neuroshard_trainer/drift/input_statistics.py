"""Statistics of a trainer's inputs: per feature lookups, distinct rows, and distinct lists of a batch.

Distinct rows are the sharp statistic: in a batch of some thousand samples they vary by parts of a percent, and move
with skew and with pooling factor. Counting sorts the batch's lookups, so only some batches are sampled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, Final

import numpy as np
from neuroshard_api.input_statistics import FeatureStatistics, InputStatistics
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLED_EVERY: Final = 100
"""Batches of which one is counted."""
MIN_LOG_RATIO: Final = 0.1
"""Least change of a statistic, as the natural logarithm of its ratio."""
HELD_SAMPLES: Final = 2
"""Sampled batches in a row that must show it."""
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_INCREMENT: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class FeatureCounts:
    """One feature in one batch."""

    samples: int
    lookups: int
    distinct_rows: int
    distinct_lists: int
    """Distinct lists of rows, order and repetitions included; empty ones are one."""


BatchCounts = Mapping[str, FeatureCounts]
"""By feature."""


def counts_of(lookups: KeyedJaggedTensor) -> dict[str, FeatureCounts]:
    """Count a batch on the host. Tensors of a GPU are copied, which waits for it."""
    keys = lookups.keys()
    lengths = lookups.lengths().cpu().numpy().reshape(len(keys), -1)
    values = lookups.values().cpu().numpy()
    ends = np.cumsum(lengths.sum(axis=1))
    return {
        key: feature_counts(values[end - own.sum() : end], own)
        for key, own, end in zip(keys, lengths, ends, strict=True)
    }


def feature_counts(values: NDArray[Any], lengths: NDArray[Any]) -> FeatureCounts:
    """Count one feature.

    Args:
        values: row ids, sample after sample.
        lengths: lookups of each sample.
    """
    return FeatureCounts(
        samples=len(lengths),
        lookups=len(values),
        distinct_rows=_distinct(values),
        distinct_lists=_distinct(_list_hashes(values, lengths)),
    )


def statistics_of(
    batches: Sequence[BatchCounts], *, plan_sha256: str, first_step: int, last_step: int
) -> InputStatistics:
    """Return the means over sampled batches of one size, of which there must be one."""
    (first, *_) = batches[0].values()
    return InputStatistics(
        plan_sha256=plan_sha256,
        first_step=first_step,
        last_step=last_step,
        num_batches=len(batches),
        batch_size=first.samples,
        features=tuple(_mean_statistics(name, [batch[name] for batch in batches]) for name in batches[0]),
    )


class InputDrift:
    """Features whose statistics are lastingly others than those of the reference.

    Args:
        reference: of the batches that the plan fits.
    """

    def __init__(self, reference: InputStatistics) -> None:
        self._reference = {each.feature: each for each in reference.features}
        self._batch_size = reference.batch_size
        self._held: dict[str, int] = {}

    def add(self, batch: BatchCounts) -> tuple[str, ...]:
        """Take in a sampled batch; return the features that changed for as many samples as an alarm needs.

        A batch of another size, such as the last of an epoch, shows nothing: distinct rows depend on the size.
        """
        for name, counts in batch.items():
            if name in self._reference and counts.samples == self._batch_size:
                is_changed = has_changed(self._reference[name], _mean_statistics(name, [counts]))
                self._held[name] = self._held.get(name, 0) + 1 if is_changed else 0
        return tuple(sorted(name for name, held in self._held.items() if held >= HELD_SAMPLES))


def has_changed(reference: FeatureStatistics, recent: FeatureStatistics) -> bool:
    """Return whether any statistic of a feature moved by at least ``MIN_LOG_RATIO``."""
    pairs = (
        (reference.lookups_per_sample, recent.lookups_per_sample),
        (reference.distinct_rows_per_lookup, recent.distinct_rows_per_lookup),
        (reference.distinct_lists_per_sample, recent.distinct_lists_per_sample),
    )
    return any(abs(_log_ratio(before, since)) >= MIN_LOG_RATIO for before, since in pairs)


def _log_ratio(before: float, since: float) -> float:
    if before == since:
        return 0.0
    ratio = log(since / before) if before > 0 and since > 0 else float("inf")
    return ratio if isfinite(ratio) else float("inf")


def _mean_statistics(name: str, counts: Sequence[FeatureCounts]) -> FeatureStatistics:
    samples = sum(each.samples for each in counts)
    lookups = sum(each.lookups for each in counts)
    return FeatureStatistics(
        feature=name,
        lookups_per_sample=lookups / max(1, samples),
        distinct_rows_per_lookup=sum(each.distinct_rows for each in counts) / lookups if lookups else 1.0,
        distinct_lists_per_sample=sum(each.distinct_lists for each in counts) / max(1, samples),
    )


def _distinct(values: NDArray[Any]) -> int:
    """Count distinct values. By sorting: numpy's own ``unique`` takes longer for the same."""
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1 if len(ordered) else 0


def _list_hashes(values: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.uint64]:
    """Return 64 bits for each list: the sum over its places of SplitMix64's finalizer of row and place."""
    lengths = lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    places = np.arange(len(values)) - np.repeat(ends - lengths, lengths)
    bits = values.astype(np.uint64) + (places.astype(np.uint64) + np.uint64(1)) * _INCREMENT
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        bits = (bits ^ (bits >> np.uint64(shift))) * multiplier
    bits ^= bits >> np.uint64(31)
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(bits, dtype=np.uint64)))
    hashes: NDArray[np.uint64] = sums[ends] - sums[ends - lengths]
    return hashes

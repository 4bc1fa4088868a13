"""Statistics of a trainer's inputs: per feature lookups, distinct rows, and distinct lists of a batch.

Distinct rows are the sharp statistic: in a batch of some thousand samples they vary by parts of a percent, and move
with skew and with pooling factor. Counting sorts lookups, so it takes in the first samples of a batch alone.

Batches are counted as they are sent. Without repeated lists their lookups per sample are those of the log over the
duplication factor, so that another factor is a change of lookups; with all lists, one of distinct lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log, sqrt
from typing import Any, Final

import numpy as np
import torch
from neuroshard_api.documents.input_statistics import FeatureStatistics, InputStatistics
from neuroshard_api.documents.tables import REUSE_BINS
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_trainer.drift.columns import alike
from neuroshard_trainer.ranks.run_identity import RunIdentity

MIN_LOG_RATIO: Final = 0.1
"""Least change of a statistic, as the natural logarithm of its ratio."""
NOISE_DEVIATIONS: Final = 3.0
"""Least change, in deviations of a count that varies as a Poisson number does. Distinct rows vary less."""
HELD_SAMPLES: Final = 2
"""Sampled batches in a row that must show it."""
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_INCREMENT: Final = np.uint64(0x9E3779B97F4A7C15)
_HASH_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class FeatureCounts:
    """One feature in one batch."""

    samples: int
    lookups: int
    filled_lists: int
    """Samples with lookups. A repeat that is left out of a batch has none."""
    counted_samples: int
    """First samples of the batch, which the other numbers are of."""
    counted_lookups: int
    distinct_rows: int
    distinct_lists: int
    """Distinct lists of rows, order and repetitions included; empty ones are one."""
    lowest_row: int = 0
    """Of the counted ones; 0 without lookups."""
    highest_row: int = 0
    most_lookups: int = 0
    """Counted ones of the row that is looked up most."""
    are_alike: float = field(default=1.0, compare=False)
    """How many times fewer runs of equal lists the counted samples have than in an order that is drawn; at least 1."""


BatchCounts = Mapping[str, FeatureCounts]
"""By feature."""


def counts_of(lookups: KeyedJaggedTensor, *, counted_samples: int | None = None) -> dict[str, FeatureCounts]:
    """Count a batch on the host. Tensors of a GPU are copied, which waits for it.

    Args:
        lookups: of all features, each of equally many samples.
        counted_samples: first samples in which distinct rows and lists are counted. If unset: all.
    """
    keys = lookups.keys()
    lengths = lookups.lengths().cpu().numpy().reshape(len(keys), -1).astype(np.int64)
    counted = lengths[:, :counted_samples]
    sizes, counted_sizes = lengths.sum(axis=1), counted.sum(axis=1)
    begins = np.cumsum(sizes) - sizes
    values = lookups.values()
    parts = [values[begin : begin + size] for begin, size in zip(begins.tolist(), counted_sizes.tolist(), strict=True)]
    rows = torch.cat(parts).cpu().numpy()
    features = np.arange(len(keys), dtype=np.uint64)
    distinct_rows, most, _ = _distinct(np.repeat(features, counted_sizes), _mixed(rows.astype(np.uint64)), len(keys))
    lists = _list_hashes(rows, counted.ravel())
    distinct_lists, _, squares = _distinct(np.repeat(features, counted.shape[1]), lists, len(keys))
    by_feature = lists.reshape(len(keys), -1)
    runs = 1 + (by_feature[:, 1:] != by_feature[:, :-1]).sum(axis=1)
    are_alike = alike(counted.shape[1], runs, squares)
    lowest, highest = _extremes(rows, counted_sizes)
    return {
        key: FeatureCounts(
            samples=lengths.shape[1],
            lookups=int(sizes[index]),
            filled_lists=int(np.count_nonzero(lengths[index])),
            counted_samples=counted.shape[1],
            counted_lookups=int(counted_sizes[index]),
            distinct_rows=int(distinct_rows[index]),
            distinct_lists=int(distinct_lists[index]),
            lowest_row=int(lowest[index]),
            highest_row=int(highest[index]),
            most_lookups=int(most[index]),
            are_alike=float(are_alike[index]),
        )
        for index, key in enumerate(keys)
    }


def reuse_histograms(lookups: KeyedJaggedTensor, features: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return the share of some features' distinct rows by hits per row in a batch, shape (REUSE_BINS,).

    A feature without lookups has none.
    """
    keys = lookups.keys()
    sizes = lookups.lengths().cpu().numpy().reshape(len(keys), -1).sum(axis=1)
    ends = np.cumsum(sizes)
    found = {}
    for name in features:
        index = keys.index(name)
        rows = np.sort(lookups.values()[int(ends[index] - sizes[index]) : int(ends[index])].cpu().numpy())
        if len(rows):
            firsts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
            hits = np.diff(np.append(firsts, len(rows)))
            bins = np.minimum(np.ceil(np.log2(hits)).astype(np.int64), REUSE_BINS - 1)
            found[name] = np.bincount(bins, minlength=REUSE_BINS) / len(hits)
    return found


def statistics_of(
    batches: Sequence[BatchCounts],
    *,
    run: RunIdentity,
    first_step: int,
    last_step: int,
    changed: Sequence[str] = (),
    histograms: Mapping[str, Sequence[float]] | None = None,
) -> InputStatistics:
    """Return the means over sampled batches of one size, of which there must be one.

    Args:
        batches: the counts.
        run: that counted.
        first_step: of the first batch.
        last_step: of the last batch.
        changed: features whose inputs changed.
        histograms: of reuse, by feature.
    """
    (first, *_) = batches[0].values()
    histograms = histograms or {}
    return InputStatistics(
        source=run.source,
        plan_sha256=run.plan_sha256,
        run_id=run.run_id,
        first_step=first_step,
        last_step=last_step,
        num_batches=len(batches),
        batch_size=first.samples,
        counted_samples=first.counted_samples,
        changed_features=tuple(changed),
        features=tuple(
            _mean_statistics(name, [batch[name] for batch in batches], histograms.get(name)) for name in batches[0]
        ),
    )


class InputDrift:
    """Features whose statistics are lastingly others than those of the reference.

    Args:
        reference: of the batches that the plan fits.
    """

    def __init__(self, reference: InputStatistics) -> None:
        self._reference = {each.feature: each for each in reference.features}
        self._sizes = reference.batch_size, reference.counted_samples
        self._held: dict[str, int] = {}

    def add(self, batch: BatchCounts) -> tuple[str, ...]:
        """Take in a sampled batch; return the features that changed for as many samples as an alarm needs.

        A batch of another size, such as the last of an epoch, shows nothing: distinct rows depend on the size.
        """
        for name, counts in batch.items():
            if name in self._reference and (counts.samples, counts.counted_samples) == self._sizes:
                is_changed = has_changed(self._reference[name], counts)
                self._held[name] = self._held.get(name, 0) + 1 if is_changed else 0
        return tuple(sorted(name for name, held in self._held.items() if held >= HELD_SAMPLES))


def has_changed(reference: FeatureStatistics, counts: FeatureCounts) -> bool:
    """Return whether any statistic of a feature moved by at least ``MIN_LOG_RATIO``, and by more than its noise."""
    recent = _mean_statistics(reference.feature, [counts])
    pairs = (
        (reference.lookups_per_sample, recent.lookups_per_sample, counts.filled_lists),
        (reference.distinct_rows_per_lookup, recent.distinct_rows_per_lookup, counts.distinct_rows),
        (reference.distinct_lists_per_sample, recent.distinct_lists_per_sample, counts.distinct_lists),
    )
    return any(has_moved(*pair) for pair in pairs)


def has_moved(before: float, since: float, count: int, *, deviations: float = NOISE_DEVIATIONS) -> bool:
    """Return whether a statistic moved by at least ``MIN_LOG_RATIO``, and by more than its noise.

    Args:
        before: the statistic.
        since: likewise.
        count: what it counted since, which varies as a Poisson number does.
        deviations: of that number.
    """
    return abs(_log_ratio(before, since)) >= max(MIN_LOG_RATIO, deviations / sqrt(max(1, count)))


def _log_ratio(before: float, since: float) -> float:
    if before == since:
        return 0.0
    ratio = log(since / before) if before > 0 and since > 0 else float("inf")
    return ratio if isfinite(ratio) else float("inf")


def _mean_statistics(
    name: str, counts: Sequence[FeatureCounts], histogram: Sequence[float] | None = None
) -> FeatureStatistics:
    samples = sum(each.samples for each in counts)
    counted_samples = sum(each.counted_samples for each in counts)
    counted_lookups = sum(each.counted_lookups for each in counts)
    return FeatureStatistics(
        feature=name,
        lookups_per_sample=sum(each.lookups for each in counts) / max(1, samples),
        distinct_rows_per_lookup=sum(each.distinct_rows for each in counts) / counted_lookups
        if counted_lookups
        else 1.0,
        distinct_lists_per_sample=sum(each.distinct_lists for each in counts) / max(1, counted_samples),
        reuse_histogram=None if histogram is None else tuple(histogram),
    )


def _extremes(rows: NDArray[Any], sizes: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lowest and the highest row of each feature; 0 for one without lookups."""
    found = np.zeros((2, len(sizes)), dtype=rows.dtype)
    has_rows = sizes > 0
    if has_rows.any():
        begins = (np.cumsum(sizes) - sizes)[has_rows]
        found[:, has_rows] = np.minimum.reduceat(rows, begins), np.maximum.reduceat(rows, begins)
    return found[0], found[1]


def _distinct(
    features: NDArray[np.uint64], hashes: NDArray[np.uint64], num_features: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return, by feature, its distinct hashes, those equal to its most frequent one, and the sum of their squares.

    Hashes are compared by the bits that the feature's number leaves. Sorting takes less than ``unique``.
    """
    feature_bits = np.uint64(max(1, (num_features - 1).bit_length()))
    shift = np.uint64(_HASH_BITS) - feature_bits
    ordered = np.sort((features << shift) | (hashes >> feature_bits))
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    places = np.flatnonzero(is_first)
    owners = (ordered[places] >> shift).astype(np.int64)
    most = np.zeros(num_features, dtype=np.int64)
    hits = np.diff(places, append=len(ordered))
    np.maximum.at(most, owners, hits)
    squares = np.bincount(owners, weights=np.square(hits, dtype=np.float64), minlength=num_features)
    return np.bincount(owners, minlength=num_features), most, squares.astype(np.int64)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finalizer of each number."""
    bits = bits + _INCREMENT
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        bits = (bits ^ (bits >> np.uint64(shift))) * multiplier
    return bits ^ (bits >> np.uint64(31))


def _list_hashes(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 bits for each list: the sum over its places of the mixed sum of row and place."""
    ends = np.cumsum(lengths)
    places = (np.arange(len(values)) - np.repeat(ends - lengths, lengths)).astype(np.uint64)
    bits = _mixed(values.astype(np.uint64) + places * _INCREMENT)
    sums = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(bits, dtype=np.uint64)))
    hashes: NDArray[np.uint64] = sums[ends] - sums[ends - lengths]
    return hashes

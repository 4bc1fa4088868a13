"""Columns of a training's data: values that are missing, and distributions, of a sampled batch against the first ones.

Shares of samples are compared: of those that have no value, and of those below each tenth of the first batches' values.
A share of n samples varies by a binomial number. Samples of one user or one session are alike, which makes it vary
more: by how much, the first batches show, from one to the next and in the runs of equal values that neighbors have, and
the limit grows with it. A share has moved from six such deviations on,
and from a least difference, since on very many samples any difference is clear.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from neuroshard_api.documents.counts import Count
from neuroshard_api.documents.document import Value
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
DEVIATIONS: Final = 6.0
"""Normal values exceed it once in 500 million."""
MIN_NULLS: Final = 0.05
"""Least share of samples that more have no value."""
MIN_MOVED: Final = 0.1
"""Least difference of two distributions: the largest of the shares below a value."""
TENTHS: Final = np.arange(1, 10) / 10
COUNTED_VALUES: Final = 131_072
"""Values of a batch, over all columns, in which distributions are counted, if these are enough samples."""
MIN_COUNTED_SAMPLES: Final = 64


def shares_moved(
    before: FloatArray,
    now: FloatArray,
    *,
    num_before: NDArray[np.int64] | int,
    num_now: NDArray[np.int64] | int,
    excess: FloatArray | float,
    least: float,
) -> NDArray[np.bool_]:
    """Return, by share, whether it differs by more than its noise.

    Args:
        before: shares of samples.
        now: likewise.
        num_before: samples that the shares before are of.
        num_now: likewise.
        excess: how many times a share's variance is that of a binomial number.
        least: difference.
    """
    pooled = (before * num_before + now * num_now + 1) / (num_before + num_now + 2)
    errors = np.sqrt(excess * pooled * (1 - pooled) * (1 / num_before + 1 / num_now))
    moved: NDArray[np.bool_] = np.abs(now - before) >= np.maximum(least, DEVIATIONS * errors)
    return moved


def excess_of(shares: FloatArray, num_samples: FloatArray | int) -> FloatArray:
    """Return [columns] how many times the variance of shares is that of binomial numbers, at least 1.

    A few batches tell little of one column, so that none is taken for steadier than most.

    Args:
        shares: [batches, columns, shares of a column].
        num_samples: of a batch, or [columns, 1] those of each column.
    """
    mean = shares.mean(axis=0)
    is_share = (mean > 0) & (mean < 1)
    variances = ((shares - mean) ** 2).sum(axis=0) / (len(shares) - 1)
    ratios = np.where(is_share, variances * num_samples / np.where(is_share, mean * (1 - mean), 1.0), 0.0)
    of_columns = ratios.sum(axis=1) / np.maximum(1, is_share.sum(axis=1))
    excess: FloatArray = np.maximum(1.0, np.maximum(of_columns, np.median(of_columns)))
    return excess


def alike(num_samples: int, runs: NDArray[np.int64], squares: NDArray[np.int64]) -> FloatArray:
    """Return, by column, how many times fewer runs its values have than in an order that is drawn; at least 1.

    Args:
        num_samples: of the column.
        runs: of equal values that neighbors have.
        squares: sum of the squares of how often each value is there.
    """
    drawn = 1 + num_samples - squares / max(1, num_samples)
    found: FloatArray = np.maximum(1.0, drawn / np.maximum(1, runs))
    return found


def alike_values(values: NDArray[np.floating]) -> FloatArray:
    """Return the same of the columns of [samples, columns] values."""
    runs = 1 + (values[1:] != values[:-1]).sum(axis=0)
    squares = [np.square(np.unique(column, return_counts=True)[1]).sum() for column in values.T]
    return alike(len(values), runs, np.array(squares))


def counted_samples(num_columns: int) -> int:
    """Return the number of a batch's first samples in which columns are counted."""
    return max(MIN_COUNTED_SAMPLES, COUNTED_VALUES // max(1, num_columns))


class ShareReference(Value):
    """One share of each column's samples in the first batches."""

    shares: tuple[float, ...] = ()
    """Empty: not known yet."""
    excess: tuple[float, ...] = ()
    """By column, as for ``shares_moved``."""
    counts: tuple[Count, ...] = ()
    """By column, samples that its share is of."""


class ShareWatch:
    """One share of each column's samples, against that of the first batches.

    Args:
        least: difference that is one.
        num_first: batches that the reference is of.
        reference: of an earlier start, if it has one.
    """

    def __init__(self, least: float, num_first: int, reference: ShareReference) -> None:
        self._least = least
        self._num_first = num_first
        self.reference = reference
        self._first: list[tuple[FloatArray, NDArray[np.int64], FloatArray]] = []

    def add(self, shares: FloatArray, counts: NDArray[np.int64], are_alike: FloatArray) -> NDArray[np.bool_]:
        """Take in a batch; return, by column, whether its share has moved, of which none has without a reference.

        Args:
            shares: by column.
            counts: by column, samples that its share is of.
            are_alike: by column, as ``alike`` has it.
        """
        known = self.reference
        if not known.shares:
            self._learn(shares, counts, are_alike)
        if len(known.shares) != len(shares):
            return np.zeros(len(shares), dtype=np.bool_)
        return shares_moved(
            np.array(known.shares),
            shares,
            num_before=np.maximum(1, known.counts),
            num_now=np.maximum(1, counts),
            excess=np.array(known.excess),
            least=self._least,
        )

    def _learn(self, shares: FloatArray, counts: NDArray[np.int64], are_alike: FloatArray) -> None:
        if self._first and len(self._first[0][0]) != len(shares):
            self._first = []
        self._first.append((shares, counts, are_alike))
        if len(self._first) == self._num_first:
            each, of, in_runs = (np.array(arrays) for arrays in zip(*self._first, strict=True))
            total = of.sum(axis=0)
            excess = np.maximum(excess_of(each[:, :, None], of.mean(axis=0)[:, None]), in_runs.mean(axis=0))
            self.reference = ShareReference(
                shares=tuple(((each * of).sum(axis=0) / np.maximum(1, total)).tolist()),
                excess=tuple(excess.tolist()),
                counts=tuple(total.tolist()),
            )
            self._first = []


class ColumnReference(Value):
    """What later batches are compared with."""

    num_samples: int
    edges: tuple[tuple[float, ...], ...]
    """By column: the tenths of its values."""
    shares: tuple[tuple[float, ...], ...]
    """By column: of samples that are at most each edge."""
    nulls: tuple[float, ...]
    """By column: of samples without a value."""
    excess: tuple[float, ...]
    """By column, as for ``shares_moved``."""


@dataclass(frozen=True, slots=True)
class DenseColumns:
    """The dense columns of the first batches.

    Args:
        fills: by column, what the reader puts in the place of a missing value; NaN where it refuses one.
        reference: of the first batches.
    """

    fills: FloatArray
    reference: ColumnReference

    @classmethod
    def of(cls, batches: Sequence[NDArray[np.float32]], fills: FloatArray) -> Self:
        """Return the columns of these batches, each [samples, columns]."""
        values = np.concatenate(batches).astype(np.float64)
        edges = np.quantile(values, TENTHS, axis=0, method="inverted_cdf").T
        each = np.array([_below(batch, edges) for batch in batches])
        shares = _below(values, edges)
        in_runs = np.mean([alike_values(batch) for batch in batches], axis=0)
        excess = np.maximum(excess_of(each, len(batches[0])), in_runs)
        return cls(
            fills,
            ColumnReference(
                num_samples=len(values),
                edges=tuple(map(tuple, edges.tolist())),
                shares=tuple(map(tuple, shares.tolist())),
                nulls=tuple(_nulls(values, fills).tolist()),
                excess=tuple(excess.tolist()),
            ),
        )

    def nulls(self, dense: NDArray[np.float32]) -> dict[int, tuple[float, float]]:
        """Return the shares without a value, before and now, of the columns that have more."""
        reference, now = self.reference, _nulls(dense, self.fills)
        before, excess = np.array(reference.nulls), np.array(reference.excess)
        noise = {"num_before": reference.num_samples, "num_now": len(dense)}
        moved = shares_moved(before, now, excess=excess, least=MIN_NULLS, **noise) & (now > before)
        return {int(column): (float(before[column]), float(now[column])) for column in np.flatnonzero(moved)}

    def moved(self, dense: NDArray[np.float32]) -> dict[int, float]:
        """Return the difference of the distribution of the columns that have another one."""
        reference = self.reference
        before, now = np.array(reference.shares), _below(dense, np.array(reference.edges))
        excess = np.array(reference.excess)[:, None]
        noise = {"num_before": reference.num_samples, "num_now": len(dense)}
        moved = shares_moved(before, now, excess=excess, least=MIN_MOVED, **noise).any(axis=1)
        distance = np.abs(now - before).max(axis=1)
        return {int(column): float(distance[column]) for column in np.flatnonzero(moved)}


def _below(values: NDArray[np.floating], edges: FloatArray) -> FloatArray:
    """Return [columns, edges] shares of samples that are at most each edge."""
    shares: FloatArray = (values[:, :, None] <= edges[None].astype(values.dtype)).mean(axis=0, dtype=np.float64)
    return shares


def _nulls(values: NDArray[np.floating], fills: FloatArray) -> FloatArray:
    """Return [columns] shares of samples that have the value of a missing one."""
    shares: FloatArray = (values == fills.astype(np.float32)).mean(axis=0, dtype=np.float64)
    return shares

"""Doubts about columns that are looked up: labels, times, running numbers, and names of samples that are like ids.

A model that looks up its own label predicts it; a table of times or running numbers learns nothing of later samples.
Nothing but the values shows it, so that a doubt is a question and not a refusal.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from neuroshard_api.documents.label_names import is_named_like_label
from neuroshard_costs.shards import IndexArray

from neuroshard_profiler.data.batches import FeatureBatch

MIN_SAMPLES = 100
"""Fewer samples show nothing."""
MAX_FALL_SHARE = 0.02
"""Of the changes of a value from sample to sample, up to which the values rise: a log may be of several files."""
MIN_DISTINCT_SHARE = 0.9
"""Distinct values over samples, from which nearly each sample has a value for itself."""
_KEPT = 4096
"""Smallest hashes that are kept to estimate distinct values: a standard error of 1.6 %."""
_YEARS_S = (978_307_200, 2_051_222_400)
"""2001 to 2035 in seconds since 1970."""
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


_LIKE_FRACTION = re.compile(r"\s*[-+]?[$€£]?\s*\d[\d,' ]*(\.\d+(e[-+]?\d+)?\s*%?|%)\s*", re.IGNORECASE)
_LIKE_LIST = re.compile(r"\s*\[.*\]\s*|[^|;]+([|;][^|;]+)+")


def doubt_of_cells(name: str, cells: Sequence[str]) -> str | None:
    """Return a question on a column of CSV that is looked up as texts. None: its cells are like ids.

    Args:
        name: of the column.
        cells: of the first lines, without empty ones; at least one is not a number.
    """
    for kind, question in (
        (_LIKE_FRACTION, "is it a dense feature? write plain numbers, and nothing where one is missing, or give"),
        (_LIKE_LIST, "is it a column of lists? a cell of CSV is one id: write Parquet, or give"),
    ):
        found = [each for each in cells if kind.fullmatch(each)]
        if 2 * len(found) >= max(1, len(cells)):
            others = (each for each in cells if kind is _LIKE_FRACTION and not _is_plain_number(each))
            shown = dict.fromkeys((found[0], *islice(others, 1)))
            return f"{name}: has texts such as {' and '.join(map(repr, shown))}; {question} --ignore {name}"
    return None


def _is_plain_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell == cell.strip()


@dataclass(slots=True)
class SeenValues:
    """The values of one feature so far, as far as a doubt needs them."""

    are_texts: bool = False
    """Whether some values are texts other than integers, which have no order."""
    is_single: bool = True
    """Whether no sample has several values."""
    num_values: int = 0
    num_rises: int = 0
    num_falls: int = 0
    lowest: int = 0
    highest: int = 0
    few: IndexArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Up to three distinct values."""
    hashes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """Smallest distinct hashes, in their order."""
    last: int | None = None

    def take(self, feature: FeatureBatch, distinct: IndexArray) -> None:
        """Count further samples, in their order; ``distinct`` are their ids without repetition, ascending."""
        self.is_single = self.is_single and bool((feature.lengths <= 1).all())
        if not self.is_single or not len(feature.ids):
            return
        self.are_texts = self.are_texts or feature.integers is None
        if feature.integers is not None and not self.are_texts:
            self._take_order(feature.integers)
        self.num_values += len(feature.ids)
        self.few = np.union1d(self.few, distinct[:3])[:3]
        self.hashes = np.union1d(self.hashes, _hashes(distinct))[:_KEPT]

    def _take_order(self, values: IndexArray) -> None:
        first = values[:1] if self.last is None else np.array([self.last], dtype=np.int64)
        changes = np.diff(np.concatenate((first, values)))
        self.num_rises += int(np.count_nonzero(changes > 0))
        self.num_falls += int(np.count_nonzero(changes < 0))
        self.last = int(values[-1])
        low, high = int(values.min()), int(values.max())
        self.lowest, self.highest = (min(self.lowest, low), max(self.highest, high)) if self.num_values else (low, high)

    @property
    def num_distinct(self) -> float:
        """Distinct values, estimated where there are many."""
        if len(self.hashes) < _KEPT:
            return float(len(self.hashes))
        return float((_KEPT - 1) / (int(self.hashes[-1]) / 2**64))

    def doubt(self, name: str, *, has_label: bool) -> str | None:
        """Return a question to the user of the data. None: the values are like those of ids."""
        if not self.is_single or not self.num_values:
            return None
        values = "2 values" if len(self.few) == 2 else ""  # noqa: PLR2004 - clicked or not
        if values and not has_label:
            return f"{name}: {values}; is it the label? --label {name}"
        if is_named_like_label(name):
            named = ", ".join(filter(None, (values, "named like a label")))
            return f"{name}: {named}; is it known only after the label? --ignore {name}"
        found = self._unlike_ids if self.num_values >= MIN_SAMPLES else None
        return None if found is None else f"{name}: {found} --ignore {name}"

    @property
    def _unlike_ids(self) -> str | None:
        """What the values are instead of ids."""
        if self._is_time and not self.are_texts:
            return "times from 2001 to 2035; is it a time?"
        changes = self.num_rises + self.num_falls
        if not self.are_texts and changes >= MIN_SAMPLES / 2 and self.num_falls <= MAX_FALL_SHARE * changes:
            return "rises from sample to sample; is it a time or a running number?"
        if self.num_distinct >= MIN_DISTINCT_SHARE * self.num_values:
            found = f"about {self.num_distinct:,.0f} values in {self.num_values:,} samples"
            return (
                f"{found}, so that few repeat; is it a {'name of the sample' if self.are_texts else 'running number'}?"
            )
        return None

    @property
    def _is_time(self) -> bool:
        """Whether all values are times since 1970 in seconds, or in thousandths and so on."""
        first, last = _YEARS_S
        return any(first * unit <= self.lowest and self.highest <= last * unit for unit in (1, 10**3, 10**6, 10**9))


def _hashes(values: IndexArray) -> np.ndarray:
    """Return numbers of 64 bits that look drawn: SplitMix64's finalizer."""
    with np.errstate(over="ignore"):
        mixed = (values.astype(np.uint64) + _MIX[0]) * _MIX[0]
        for shift, factor in zip((30, 27), _MIX[1:], strict=True):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * factor
        return np.asarray(mixed ^ (mixed >> np.uint64(31)))

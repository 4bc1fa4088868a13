"""Labels and dense columns of a log as they are read: what training would refuse, what is missing, and ranges.

A label is judged by the trainer's own rule. Errors name the place, so that nothing is planned for a log that no
training could read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.source import require_labels
from numpy.typing import NDArray

Numbers = NDArray[np.float32] | NDArray[np.float64]


@dataclass(slots=True)
class SeenColumn:
    """The values of a dense column so far."""

    num_missing: int = 0
    """Null, empty, or NaN."""
    num_values: int = 0
    smallest: float = np.inf
    largest: float = -np.inf
    are_whole: bool = True
    """Whether no value is a fraction."""

    def take(self, values: Numbers) -> None:
        """Count further values, NaN where they are missing."""
        present = values[~np.isnan(values)]
        self.num_missing += len(values) - len(present)
        self.num_values += len(present)
        if len(present):
            self.smallest = min(self.smallest, float(present.min()))
            self.largest = max(self.largest, float(present.max()))
            self.are_whole = self.are_whole and bool((present == np.floor(present)).all())

    @property
    def are_like_ids(self) -> bool:
        """Whether all values are whole numbers from 0 on, and other ones than 0 and 1."""
        return self.num_values > 0 and self.are_whole and self.smallest >= 0 and self.largest > 1


@dataclass(slots=True)
class SeenNumbers:
    """Label and dense columns so far.

    Args:
        label: name of the column. None: it is not known, or holds no numbers.
        dense: names of the columns.
        may_miss: whether training fills in what is missing.
        refuses: whether what training would refuse is an error. If not, what is missing is counted, and nothing more.
    """

    label: str | None
    dense: tuple[str, ...]
    may_miss: bool = True
    refuses: bool = True
    num_samples: int = 0
    num_positive: int = 0
    """Samples of label 1."""
    columns: dict[str, SeenColumn] = field(default_factory=dict)
    first_unlabeled: str | None = None
    """Place of the first sample without a label. None: there is none."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return self.dense if self.label is None else (self.label, *self.dense)

    @property
    def num_missing(self) -> Mapping[str, int]:
        """Samples that lack a value, by column, without those that have all."""
        return {name: each.num_missing for name, each in self.columns.items() if each.num_missing}

    def take(self, columns: Mapping[str, Numbers], place: Callable[[int], str]) -> None:
        """Count further samples.

        Args:
            columns: [samples] by name, NaN where a value is missing.
            place: of a sample, for errors.

        Raises:
            DataError: training would refuse one for another reason than a missing label.
        """
        self.num_samples += len(next(iter(columns.values()), ()))
        for name in self.names:
            self.columns.setdefault(name, SeenColumn()).take(columns[name])
        if self.label is not None:
            self._take_labels(self.label, columns[self.label], place)
        if self.refuses:
            for name in self.dense:
                self._require_finite(name, columns[name], place)

    def _take_labels(self, name: str, labels: Numbers, place: Callable[[int], str]) -> None:
        missing = np.flatnonzero(np.isnan(labels))
        if missing.size and self.first_unlabeled is None:
            self.first_unlabeled = place(int(missing[0]))
        if self.refuses:
            rows = np.flatnonzero(~np.isnan(labels))
            require_labels(labels[rows], lambda row: place(int(rows[row])), column=name)
        self.num_positive += int(np.count_nonzero(labels == 1))

    def _require_finite(self, name: str, values: Numbers, place: Callable[[int], str]) -> None:
        with np.errstate(over="ignore"):  # FP32 is what training computes with
            computed = values.astype(np.float32)
        wrong = np.flatnonzero(np.isinf(computed) if self.may_miss else ~np.isfinite(computed))
        if wrong.size:
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}, column {name}: is {values[row]:g}, expected a finite number of FP32"
                f"; hint: fix or drop the row{f', or give --ignore {name}' if self.may_miss else ''}"
            )

    def require_labels(self, where: str) -> None:
        """Do nothing if all samples have a label, and both labels occur. Raises DataError."""
        assert self.label is not None, "training has one"
        if self.first_unlabeled is not None:
            count = self.columns[self.label].num_missing
            raise DataError(
                f"{self.first_unlabeled}, column {self.label}: is missing, as in {count:,} of {self.num_samples:,} "
                "samples, and no model learns from a sample without its label; hint: drop them, or fill them in"
            )
        if self.num_positive in {0, self.num_samples}:
            raise DataError(
                f"{where}, column {self.label}: all {self.num_samples:,} labels are {int(self.num_positive > 0)}, so "
                "that there is nothing to learn; hint: give data with both labels, or another column with --label"
            )

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

    def take(self, values: Numbers) -> None:
        """Count further values, NaN where they are missing."""
        present = values[~np.isnan(values)]
        self.num_missing += len(values) - len(present)
        self.num_values += len(present)
        if len(present):
            self.smallest = min(self.smallest, float(present.min()))
            self.largest = max(self.largest, float(present.max()))


@dataclass(slots=True)
class SeenNumbers:
    """Label and dense columns so far.

    Args:
        label: name of the column.
        dense: names of the columns.
        may_miss: whether training fills in what is missing.
    """

    label: str
    dense: tuple[str, ...]
    may_miss: bool = True
    num_samples: int = 0
    num_positive: int = 0
    """Samples of label 1."""
    columns: dict[str, SeenColumn] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (self.label, *self.dense)

    def take(self, columns: Mapping[str, Numbers], place: Callable[[int], str]) -> None:
        """Count further samples.

        Args:
            columns: [samples] by name, NaN where a value is missing.
            place: of a sample, for errors.

        Raises:
            DataError: training would refuse one.
        """
        labels = columns[self.label]
        missing = np.flatnonzero(np.isnan(labels))
        if missing.size:
            raise DataError(
                f"{place(int(missing[0]))}, column {self.label}: is missing, and no model learns from a sample without "
                "its label; hint: fill it in or drop the row"
            )
        require_labels(labels, place, column=self.label)
        self.num_samples += len(labels)
        self.num_positive += int(np.count_nonzero(labels))
        for name in self.dense:
            values = columns[name]
            with np.errstate(over="ignore"):  # FP32 is what training computes with
                wrong = np.flatnonzero(
                    np.isinf(values.astype(np.float32)) if self.may_miss else ~np.isfinite(values.astype(np.float32))
                )
            if wrong.size:
                row = int(wrong[0])
                raise DataError(
                    f"{place(row)}, column {name}: is {values[row]:g}, expected a finite number of FP32"
                    f"; hint: fix or drop the row{f', or give --ignore {name}' if self.may_miss else ''}"
                )
            self.columns.setdefault(name, SeenColumn()).take(values)

    def require_both_labels(self, where: str) -> None:
        """Do nothing if there are samples of both labels. Raises DataError."""
        if self.num_positive in {0, self.num_samples}:
            raise DataError(
                f"{where}, column {self.label}: all {self.num_samples:,} labels are {int(self.num_positive > 0)}, so "
                "that there is nothing to learn; hint: give data with both labels, or another column with --label"
            )

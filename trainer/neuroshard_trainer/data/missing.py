"""Dense values that are missing: refused, or filled with 0 or with the mean of those that are there.

Means are of all rows of ``spec.data.path``, taken in a first pass, and kept in the run directory: evaluation data, a
resumed run, and an exported model fill with the same ones.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from neuroshard_api.documents.document import Document
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.process.errors import DataError
from numpy.typing import NDArray

from neuroshard_trainer.data.line_index import alone
from neuroshard_trainer.data.samples import FloatArray, IndexArray
from neuroshard_trainer.data.source import DecodedBlocks
from neuroshard_trainer.files import storage_error, write_file

MEANS_FILE = "dense-means.json"


class DenseMeans(Document):
    """``dense-means.json``: what missing values of dense columns are filled with. No other room reads it."""

    schema_name: ClassVar[str] = "dense-means/v1"

    schema_version: Literal["dense-means/v1"] = "dense-means/v1"
    means: dict[str, float]
    """By column."""


class FilledBlocks(DecodedBlocks):
    """A source of blocks whose dense columns may lack values.

    Args:
        dense_columns: names of the columns.
        missing: what happens to a missing value.
    """

    def __init__(self, dense_columns: Sequence[str], missing: Missing) -> None:
        super().__init__()
        self._dense_columns = tuple(dense_columns)
        self._missing = missing
        self._fill: Mapping[str, float] = dict.fromkeys(dense_columns, 0.0) if missing is Missing.ZERO else {}

    block_sizes: Sequence[int] | IndexArray
    """Rows of each block."""

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Number of blocks."""

    @abstractmethod
    def dense_column(self, block: int, name: str) -> NDArray[np.float64]:
        """Return a dense column of a block, NaN where a value is missing. Raises DataError, naming the place."""

    def fill_with_means(self, folder: Path) -> None:
        """Fill missing values with the means that the folder has, or with those of all blocks, which are kept there.

        Raises:
            DataError: a column has no value at all, or a block cannot be read.
            StorageError: the means cannot be kept.
        """
        if self._missing is not Missing.MEAN:
            return
        place = folder / MEANS_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with alone(place):
                kept = kept_means(folder)
                if kept is None or not set(self._dense_columns) <= set(kept):
                    kept = {name: self._mean(name) for name in self._dense_columns}
                    write_file(place, DenseMeans(means=dict(kept)).to_json())
        except OSError as error:
            raise storage_error(place, error) from error
        self._fill = kept

    def fill_with(self, means: Mapping[str, float]) -> None:
        """Fill missing values with these means, by column; without an effect unless means were asked for."""
        if self._missing is Missing.MEAN:
            self._fill = means

    @abstractmethod
    def place(self, block: int, row: int) -> str:
        """Return a row's place for people."""

    def filled(self, columns: Sequence[NDArray[np.float64]], block: int) -> FloatArray:
        """Return [rows, dense columns] of a block without missing values. Raises DataError with row and column."""
        num_rows = int(self.block_sizes[block])
        dense = np.zeros((num_rows, len(self._dense_columns)), dtype=np.float32)
        for index, (name, column) in enumerate(zip(self._dense_columns, columns, strict=True)):
            with np.errstate(over="ignore"):  # infinite, which is refused
                dense[:, index] = column
            is_wrong = ~np.isfinite(dense[:, index])
            if not is_wrong.any():
                continue
            if name in self._fill:
                is_missing = np.isnan(column)
                dense[is_missing, index] = self._fill[name]
                is_wrong &= ~is_missing
            if is_wrong.any():
                row = int(np.flatnonzero(is_wrong)[0])
                remedy = ", or set spec.data.missing" if np.isnan(column[row]) else ""
                raise DataError(
                    f"{self.place(block, row)}, column {name}: is {column[row]:g}, expected a finite number of 32 bits"
                    f"; hint: fix or drop the row{remedy}"
                )
        return dense

    def _mean(self, name: str) -> float:
        total, count = 0.0, 0
        for block in range(self.num_blocks):
            column = self.dense_column(block, name)
            present = column[np.isfinite(column)]
            total += float(present.sum())
            count += len(present)
        if not count:
            raise DataError(
                f"spec.data.denseColumns: column {name!r} has no value in any row, so that it has no mean"
                "; hint: leave it out, or set spec.data.missing: Zero"
            )
        return total / count


def kept_means(folder: Path) -> Mapping[str, float] | None:
    """Return the means in a run's folder of data; None: there are none."""
    place = folder / MEANS_FILE
    return DenseMeans.read(place).means if place.exists() else None

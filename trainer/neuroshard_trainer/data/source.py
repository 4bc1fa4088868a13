"""What the formats have in common: samples in numbered blocks that can be read in any order."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from neuroshard_api.process.errors import DataError
from numpy.typing import NDArray

from neuroshard_trainer.data.recent import Recent
from neuroshard_trainer.data.samples import Feature, IndexArray, Lists, Samples, SharedLists

BLOCK_SAMPLES = 4096
"""Samples of a block where the format has no blocks of its own."""
DECODED_BLOCKS = 4
"""Decoded blocks that are kept between batches; a batch mostly ends within a block."""


class SampleSource(Protocol):
    """One data set. Reading samples twice gives the same; a copy of it in another process reads by itself."""

    @property
    def block_sizes(self) -> Sequence[int] | IndexArray:
        """Samples of each block."""

    def take(self, block: int, rows: IndexArray) -> Samples:
        """Return some samples of a block, in this order. Raises DataError, naming the place."""

    def place(self, block: int, row: int) -> str:
        """Return a sample's place for people: ``train.tsv line 4711``."""


@runtime_checkable
class TypedSource(Protocol):
    """A data set whose ids are integers or texts by the types of its columns."""

    @property
    def text_features(self) -> tuple[str, ...]:
        """Features whose ids are texts."""


def text_features(source: SampleSource) -> tuple[str, ...]:
    """Return the features whose ids are texts by the types of the data."""
    return source.text_features if isinstance(source, TypedSource) else ()


class DecodedBlocks(ABC):
    """A source whose blocks are decoded as a whole; the newest are kept."""

    def __init__(self) -> None:
        self._decoded = Recent(self.read, capacity=DECODED_BLOCKS)

    @abstractmethod
    def read(self, block: int) -> Samples:
        """Return a block's samples in their stored order. Raises DataError, naming the place."""

    def take(self, block: int, rows: IndexArray) -> Samples:
        """Return some samples of a block, in this order. Raises DataError, naming the place."""
        return self._decoded(block).take(rows)


def even_blocks(num_samples: int) -> IndexArray:
    """Return the sizes of blocks of BLOCK_SAMPLES; the last may have fewer."""
    return np.diff(np.append(np.arange(0, num_samples, BLOCK_SAMPLES), num_samples))


def require_valid(
    samples: Samples, features: Sequence[Feature], source: SampleSource, block: int, rows: IndexArray
) -> None:
    """Do nothing if every row id exists in its table and every label is 0 or 1. Raises DataError, naming the place."""
    require_labels(samples.labels, lambda row: source.place(block, int(rows[row])))
    if not np.isfinite(samples.dense).all():
        sample, column = (int(at) for at in np.argwhere(~np.isfinite(samples.dense))[0])
        raise DataError(
            f"{source.place(block, int(rows[sample]))}: dense feature {column} is {samples.dense[sample, column]:g}, "
            "expected a finite number; hint: fix or drop the row, or see spec.data.missing"
        )
    for feature in features:
        found = outside(samples.lookups[feature.name], feature)
        if found is not None:
            row, problem = found
            raise DataError(f"{source.place(block, int(rows[row]))}: {problem}")


def require_labels(
    labels: NDArray[np.floating[Any]], place: Callable[[int], str], *, column: str | None = None
) -> None:
    """Do nothing if every label is 0 or 1. Raises DataError, naming the place, and the column where it is known."""
    wrong = np.flatnonzero((labels != 0) & (labels != 1))
    if wrong.size:
        where = place(int(wrong[0])) + ("" if column is None else f", column {column}")
        raise DataError(f"{where}: the label must be 0 or 1, found {labels[wrong[0]]:g}; hint: convert the labels")


def outside(lookups: Lists, feature: Feature) -> tuple[int, str] | None:
    """Return the first sample that looks up a row outside the table, and the problem; None: there is none."""
    jagged = lookups.lists if isinstance(lookups, SharedLists) else lookups
    num_rows = feature.table.num_embeddings
    if not jagged.values.size or (jagged.values.min() >= 0 and jagged.values.max() < num_rows):
        return None
    at = np.flatnonzero((jagged.values < 0) | (jagged.values >= num_rows))[0]
    place = np.searchsorted(np.cumsum(jagged.lengths), at, side="right")
    row = np.searchsorted(lookups.of_sample, place) if isinstance(lookups, SharedLists) else place
    return int(row), (
        f"{feature.name!r} looks up row {jagged.values[at]}, "
        f"table {feature.table.name!r} has rows 0 to {num_rows - 1}"
        "; hint: give the table more rows, set idRule: Hash or Modulo for it, or fix the data"
    )


def require_features(wanted: Sequence[Feature], known: Sequence[str], *, where: str) -> None:
    """Do nothing if all features are known. Raises DataError that names one that is not, and all that are."""
    unknown = next((feature for feature in wanted if feature.name not in known), None)
    if unknown is not None:
        raise DataError(
            f"{where}: has no feature {unknown.name!r}, which table {unknown.table.name!r} looks up; "
            f"it has {', '.join(known)}; hint: rename the table, or set its featureNames"
        )

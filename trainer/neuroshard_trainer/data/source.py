"""What the formats have in common: samples in numbered blocks that can be read in any order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from neuroshard_trainer.data.samples import Feature, Samples
from neuroshard_trainer.errors import DataError

BLOCK_SAMPLES = 4096
"""Samples of a block where the format has no blocks of its own: enough to parse at once, few enough to shuffle by."""


class SampleSource(Protocol):
    """One data set. Reading a block twice gives the same samples."""

    @property
    def block_sizes(self) -> Sequence[int]:
        """Samples of each block."""

    def read(self, block: int) -> Samples:
        """Return a block's samples in their stored order. Raises DataError, naming the place."""

    def place(self, block: int, row: int) -> str:
        """Return where people find a sample: ``train.tsv line 4711``."""


def require_valid(samples: Samples, features: Sequence[Feature], source: SampleSource, block: int) -> None:
    """Do nothing if every row id exists in its table and every label is 0 or 1. Raises DataError, naming the place."""
    wrong = np.flatnonzero((samples.labels != 0) & (samples.labels != 1))
    if wrong.size:
        found = samples.labels[wrong[0]]
        raise DataError(f"{source.place(block, int(wrong[0]))}: the label must be 0 or 1, found {found:g}")
    unreal = np.flatnonzero(~np.isfinite(samples.dense).all(axis=1))
    if unreal.size:
        raise DataError(
            f"{source.place(block, int(unreal[0]))}: a dense feature is not a number; mend or drop the line"
        )
    for feature in features:
        jagged, rows = samples.lookups[feature.name], feature.table.num_embeddings
        outside = np.flatnonzero((jagged.values < 0) | (jagged.values >= rows))
        if outside.size:
            row = int(np.searchsorted(jagged.offsets, outside[0], side="right")) - 1
            raise DataError(
                f"{source.place(block, row)}: {feature.name!r} looks up row {jagged.values[outside[0]]}, "
                f"table {feature.table.name!r} has rows 0 to {rows - 1}; give the table more rows or mend the data"
            )


def matching_files(path: str, root: Path, *, suffixes: Sequence[str]) -> tuple[Path, ...]:
    """Return the files that a file, folder or glob pattern names, in the order of their names.

    Args:
        path: a relative one is taken from ``root``.
        root: a folder.
        suffixes: ends of the names that count in a folder, such as ``.tsv``.

    Raises:
        DataError: there is none.
    """
    place = Path(path)
    whole = place if place.is_absolute() else root / place
    if whole.is_file():
        return (whole,)
    if whole.is_dir():
        found = sorted(file for file in whole.iterdir() if file.name.endswith(tuple(suffixes)) and file.is_file())
        if not found:
            raise DataError(f"spec.data.path: {whole} has no file that ends in {' or '.join(suffixes)}")
        return tuple(found)
    pattern = whole.relative_to(whole.anchor)
    found = sorted(file for file in Path(whole.anchor).glob(str(pattern)) if file.is_file())
    if not found:
        raise DataError(f"spec.data.path: {whole} does not exist, and no file matches it; check the path")
    return tuple(found)


def require_features(wanted: Sequence[Feature], known: Sequence[str], *, where: str) -> None:
    """Do nothing if all features are known. Raises DataError that names one that is not, and all that are."""
    unknown = next((feature for feature in wanted if feature.name not in known), None)
    if unknown is not None:
        raise DataError(
            f"{where}: has no feature {unknown.name!r}, which table {unknown.table.name!r} looks up; "
            f"it has {', '.join(known)}; name the table or its featureNames so"
        )

"""NPZ files: arrays ``label`` and ``dense``, and ``<feature>.values`` with ``<feature>.lengths`` for each feature.

The values of a feature are its ids, sample after sample; the lengths say how many each sample has. A model without
dense features needs no ``dense``. The arrays are mapped into memory, so numpy.savez writes them, and not
numpy.savez_compressed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from neuroshard_api.job.id_rules import id_rule_of
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.arrays import MappedArray, mapped_arrays
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.id_rules import rows_of_integers
from neuroshard_trainer.data.samples import Feature, IndexArray, Jagged, Samples
from neuroshard_trainer.data.source import BLOCK_SAMPLES, DecodedBlocks, even_blocks

DENSE = "dense"


@dataclass(frozen=True, kw_only=True, slots=True)
class _NpzFile:
    """One file."""

    labels: MappedArray
    dense: MappedArray | None
    """None: there are no dense features."""
    values: Mapping[str, MappedArray]
    lengths: Mapping[str, MappedArray]
    begins: Mapping[str, IndexArray]
    """Where the values of each block begin, and behind them their number, by feature."""


class NpzSource(DecodedBlocks):
    """NPZ files of the same arrays.

    Args:
        files: in the order in which their samples count.
        features: each has two arrays.
        num_dense: columns of ``dense``.
        label: name of the array of labels.
    """

    def __init__(self, files: Sequence[DataFile], features: Sequence[Feature], *, num_dense: int, label: str) -> None:
        super().__init__()
        self._features = features
        self._parts = [_opened(file, features, num_dense=num_dense, label=label) for file in files]
        sizes = [even_blocks(part.labels.shape[0]) for part in self._parts]
        self._first_block = np.cumsum([0, *(len(each) for each in sizes)])
        self.block_sizes = np.concatenate(sizes)

    def read(self, block: int) -> Samples:
        """Return a block's samples."""
        part, within = self._within(block)
        rows = slice(within * BLOCK_SAMPLES, within * BLOCK_SAMPLES + int(self.block_sizes[block]))
        lookups = {}
        for feature in self._features:
            begin, end = part.begins[feature.name][within : within + 2]
            ids = part.values[feature.name].values[begin:end]
            rule = id_rule_of(feature.table, DataFormat.NPZ)
            values = rows_of_integers(ids, rule, feature.table.num_embeddings)
            lookups[feature.name] = Jagged.of_lengths(values, part.lengths[feature.name].values[rows])
        return Samples(
            labels=part.labels.values[rows].astype(np.float32),
            dense=np.empty((int(self.block_sizes[block]), 0), dtype=np.float32)
            if part.dense is None
            else part.dense.values[rows].astype(np.float32),
            lookups=lookups,
        )

    def place(self, block: int, row: int) -> str:
        """Return file and sample; samples count from 0."""
        part, within = self._within(block)
        return f"{part.labels.file} sample {within * BLOCK_SAMPLES + row}"

    def _within(self, block: int) -> tuple[_NpzFile, int]:
        part = int(np.searchsorted(self._first_block, block, side="right")) - 1
        return self._parts[part], block - int(self._first_block[part])


def _opened(file: DataFile, features: Sequence[Feature], *, num_dense: int, label: str) -> _NpzFile:
    """Return a file's arrays. Raises DataError where one lacks or does not fit the others."""
    arrays = mapped_arrays(file)

    def array(name: str, kind: type[Any], num_dimensions: int) -> MappedArray:
        if name not in arrays:
            raise DataError(
                f"{file}: has no array {name!r} (found {', '.join(sorted(arrays)) or 'none'})"
                "; hint: add it, or rename the feature"
            )
        found = arrays[name]
        if not np.issubdtype(np.dtype(found.dtype), kind) or len(found.shape) != num_dimensions:
            raise DataError(
                f"{found}: is {np.dtype(found.dtype)}{list(found.shape)}, expected {kind.__name__} numbers in "
                f"{num_dimensions} dimension{'s' * (num_dimensions > 1)}; hint: write it with numpy.savez in that type"
            )
        return found

    labels = array(label, np.number, 1)
    dense = array(DENSE, np.number, 2) if num_dense or DENSE in arrays else None
    count = labels.shape[0]
    if not count:
        raise DataError(f"{file}: is empty, expected at least one sample; hint: remove it, or write it again")
    if dense is not None and dense.shape != (count, num_dense):
        raise DataError(
            f"{dense}: has the shape {list(dense.shape)}, expected {[count, num_dense]}: as many samples as labels, "
            "and spec.model.numDenseFeatures; hint: write as many columns, or change the field"
        )
    values = {feature.name: array(f"{feature.name}.values", np.integer, 1) for feature in features}
    lengths = {feature.name: array(f"{feature.name}.lengths", np.integer, 1) for feature in features}
    begins = {name: _begins(lengths[name], values[name], count) for name in values}
    return _NpzFile(labels=labels, dense=dense, values=values, lengths=lengths, begins=begins)


def _begins(lengths: MappedArray, values: MappedArray, count: int) -> IndexArray:
    if lengths.shape != (count,):
        raise DataError(f"{lengths}: has {lengths.shape[0]} entries, found {count} labels; hint: write one for each")
    stored = lengths.values
    if stored.min() < 0:
        raise DataError(
            f"{lengths}: entry {int(stored.argmin())} is {stored.min()}; hint: write how many ids the sample has"
        )
    per_block = np.add.reduceat(stored, np.arange(0, count, BLOCK_SAMPLES), dtype=np.int64)
    begins: IndexArray = np.concatenate(([0], np.cumsum(per_block)))
    if begins[-1] != values.shape[0]:
        raise DataError(
            f"{lengths}: sum to {begins[-1]}, {values.member!r} holds {values.shape[0]} ids"
            "; hint: write the number of each sample's ids as its length"
        )
    return begins

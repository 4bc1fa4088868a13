"""Criteo's data as torchrec and MLPerf store it: arrays of NumPy, mapped into memory.

For each day ``day_0_dense.npy`` (floats, [samples, 13], taken as they are), ``day_0_labels.npy`` ([samples] or
[samples, 1]) and the lookups: ``day_0_sparse.npy`` (integers, [samples, 26]), or in the multi-hot variant
``day_0_sparse_multi_hot.npz`` with the arrays "0" to "25", each [samples, lookups per sample]. Lookups are taken modulo
the rows of their table, as torchrec does, unless it has another id rule; hashes of 32 bits may be stored as negative
integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from neuroshard_api.documents.preprocessing import DensePreprocessing, Missing, Preprocessing
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.arrays import MappedArray, mapped_array, mapped_arrays
from neuroshard_trainer.data.criteo import DENSE_NAMES, require_criteo
from neuroshard_trainer.data.criteo_lines import FEATURES, NUM_DENSE
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.preprocessing import dense_features, lookups_of, rows_of
from neuroshard_trainer.data.samples import Feature, IndexArray, Jagged, Samples
from neuroshard_trainer.data.source import BLOCK_SAMPLES, even_blocks

DENSE_SUFFIX = "_dense.npy"
_LABELS, _ONE_HOT, _MULTI_HOT = "_labels.npy", "_sparse.npy", "_sparse_multi_hot.npz"


def preprocessing(features: Sequence[Feature]) -> Preprocessing:
    """Return the way from the arrays to a model's inputs."""
    return Preprocessing(
        dense=tuple(DensePreprocessing(name=name, missing=Missing.ERROR) for name in DENSE_NAMES),
        lookups=lookups_of(features, DataFormat.CRITEO_BINARY),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Day:
    """The files of one day."""

    stem: str
    """What their names have in common."""
    dense: MappedArray
    labels: MappedArray
    lookups: Sequence[MappedArray]
    """One of all features, or one for each."""

    @property
    def num_samples(self) -> int:
        return self.labels.shape[0]


class CriteoBinarySource:
    """Criteo's arrays; only the rows that are asked for are read.

    Args:
        files: those of which the name ends in DENSE_SUFFIX name the days; others are passed over.
        features: of the model.
        num_dense: of the model.
        multi_hot: whether lookups are those of the multi-hot variant.
    """

    def __init__(
        self, files: Sequence[DataFile], features: Sequence[Feature], *, num_dense: int, multi_hot: bool
    ) -> None:
        require_criteo(features, num_dense=num_dense)
        stems = [file.place.removesuffix(DENSE_SUFFIX) for file in files if file.place.endswith(DENSE_SUFFIX)]
        if not stems:
            raise DataError(
                f"spec.data.path: {files[0]} and {len(files) - 1} more: no name ends in {DENSE_SUFFIX}"
                "; hint: check the path and spec.data.format"
            )
        self._preprocessing = preprocessing(features)
        self._lookups = [(rule, FEATURES.index(rule.feature)) for rule in self._preprocessing.lookups]
        self._multi_hot = multi_hot
        self._days = [_opened(stem, multi_hot=multi_hot) for stem in stems]
        sizes = [even_blocks(day.num_samples) for day in self._days]
        self._first_block = np.cumsum([0, *(len(each) for each in sizes)])
        self.block_sizes = np.concatenate(sizes)

    def take(self, block: int, rows: IndexArray) -> Samples:
        """Return some samples of a block, in this order."""
        day, first = self._within(block)
        at = rows + first
        return Samples(
            labels=day.labels.values[at].reshape(-1).astype(np.float32),
            dense=dense_features(day.dense.values[at], self._preprocessing.dense),
            lookups=self._many(day, at) if self._multi_hot else self._single(day, at),
        )

    def place(self, block: int, row: int) -> str:
        """Return the common part of the names of a day's files, and the row; rows count from 0."""
        day, first = self._within(block)
        return f"{day.stem} row {first + row}"

    def _single(self, day: _Day, at: IndexArray) -> dict[str, Jagged]:
        stored = day.lookups[0].values[at]
        ids = np.ascontiguousarray(stored.T)
        one_each = np.ones(len(at), dtype=np.int32)
        return {
            rule.feature: Jagged(values=rows_of(ids[column], rule), lengths=one_each) for rule, column in self._lookups
        }

    def _many(self, day: _Day, at: IndexArray) -> dict[str, Jagged]:
        found = {}
        for rule, column in self._lookups:
            ids = day.lookups[column].values[at]
            lengths = np.full(len(at), ids.shape[1], dtype=np.int32)
            found[rule.feature] = Jagged(values=rows_of(ids.reshape(-1), rule), lengths=lengths)
        return found

    def _within(self, block: int) -> tuple[_Day, int]:
        """Return a block's day, and its first sample there."""
        day = int(np.searchsorted(self._first_block, block, side="right")) - 1
        return self._days[day], (block - int(self._first_block[day])) * BLOCK_SAMPLES


def _opened(stem: str, *, multi_hot: bool) -> _Day:
    """Return a day's arrays. Raises DataError where one lacks, or is of another shape or type."""
    dense, labels = (mapped_array(_partner(stem, suffix)) for suffix in (DENSE_SUFFIX, _LABELS))
    count = labels.shape[0] if labels.shape else 0
    _require(labels, np.number, [(count,), (count, 1)])
    _require(dense, np.floating, [(count, NUM_DENSE)])
    if not multi_hot:
        lookups = (mapped_array(_partner(stem, _ONE_HOT)),)
        _require(lookups[0], np.integer, [(count, len(FEATURES))])
        return _Day(stem=stem, dense=dense, labels=labels, lookups=lookups)
    file = _partner(stem, _MULTI_HOT)
    arrays = mapped_arrays(file)
    missing = [name for name in map(str, range(len(FEATURES))) if name not in arrays]
    if missing:
        raise DataError(f"{file}: has no array {missing[0]!r}; expected '0' to '{len(FEATURES) - 1}'")
    many = tuple(arrays[str(position)] for position in range(len(FEATURES)))
    for each in many:
        _require(each, np.integer, [(count, *each.shape[1:2])] if len(each.shape) > 1 else [(count, 1)])
    return _Day(stem=stem, dense=dense, labels=labels, lookups=many)


def _partner(stem: str, suffix: str) -> DataFile:
    file = DataFile(stem + suffix)
    if file.path is not None and not file.path.is_file():
        raise DataError(f"{file}: does not exist; a day has {DENSE_SUFFIX}, {_LABELS}, and {_ONE_HOT} or {_MULTI_HOT}")
    return file


def _require(array: MappedArray, kind: type[Any], shapes: Sequence[tuple[int, ...]]) -> None:
    if not np.issubdtype(np.dtype(array.dtype), kind) or array.shape not in shapes:
        found = f"{np.dtype(array.dtype)}{list(array.shape)}"
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise DataError(
            f"{array}: is {found}, expected {kind.__name__} numbers of shape {expected}, as many samples as labels"
            "; hint: make it again with torchrec.datasets.scripts.npy_preproc_criteo"
        )

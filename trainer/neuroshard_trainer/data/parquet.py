"""Parquet files: columns by name, lookups as integers (one per sample) or lists of integers. A row group is a block."""

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.recent import Recent
from neuroshard_trainer.data.samples import Feature, FloatArray, Jagged, Samples
from neuroshard_trainer.data.source import DecodedBlocks
from neuroshard_trainer.errors import DataError

_KEPT_FILES = 64
"""Files whose metadata stays in memory: reading it again for each row group costs more than decoding a small one."""


class ParquetSource(DecodedBlocks):
    """Parquet files of one schema.

    Args:
        files: in the order in which their rows count.
        features: each is a column, of integers or lists of integers; a null looks nothing up.
        label_column: 0 or 1.
        dense_columns: one number each.
    """

    def __init__(
        self, files: Sequence[DataFile], features: Sequence[Feature], *, label_column: str, dense_columns: Sequence[str]
    ) -> None:
        super().__init__()
        self._features = features
        self._label_column = label_column
        self._dense_columns = dense_columns
        self._metadata = Recent(_metadata, capacity=_KEPT_FILES)
        self._blocks: list[tuple[DataFile, int, int]] = []  # file, row group, first row
        sizes: list[int] = []
        for file in files:
            metadata = self._checked_metadata(file)
            first = 0
            for group in range(metadata.num_row_groups):
                self._blocks.append((file, group, first))
                sizes.append(metadata.row_group(group).num_rows)
                first += sizes[-1]
        if not sum(sizes):
            raise DataError(f"{files[0]} and {len(files) - 1} more: hold no rows; expected at least one sample")
        self.block_sizes = tuple(sizes)

    def read(self, block: int) -> Samples:
        """Return a row group's samples. Raises DataError."""
        file, group, _ = self._blocks[block]
        columns = [self._label_column, *self._dense_columns, *(feature.name for feature in self._features)]
        try:
            with pq.ParquetFile(_readable(file), metadata=self._metadata(file)) as opened:
                table = opened.read_row_group(group, columns=columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file}: row group {group} cannot be read ({error}); write the file again") from error
        dense = [self._numbers(table, name, block) for name in self._dense_columns]
        return Samples(
            labels=self._numbers(table, self._label_column, block),
            dense=np.stack(dense, axis=1) if dense else np.zeros((len(table), 0), dtype=np.float32),
            lookups={feature.name: _jagged(table[feature.name]) for feature in self._features},
        )

    def place(self, block: int, row: int) -> str:
        """Return file and row; rows count from 0, as in pandas and Arrow."""
        file, _, first = self._blocks[block]
        return f"{file} row {first + row}"

    def _numbers(self, table: pa.Table, name: str, block: int) -> FloatArray:
        column = table[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise DataError(f"{self.place(block, row)}, column {name}: is null; fill it in or drop the row")
        numbers: FloatArray = column.cast(pa.float64()).to_numpy().astype(np.float32)
        return numbers

    def _checked_metadata(self, file: DataFile) -> pq.FileMetaData:
        """Return the file's metadata. Raises DataError where a column lacks or has a type that cannot be used."""
        try:
            metadata = self._metadata(file)
            schema = metadata.schema.to_arrow_schema()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file}: is no Parquet file that can be read ({error})") from error
        numbers = dict.fromkeys((self._label_column, *self._dense_columns), _is_number)
        wanted = {**numbers, **{feature.name: _is_lookup for feature in self._features}}
        for name, fits in wanted.items():
            if name not in schema.names:
                raise DataError(f"{file}: has no column {name!r}; it has {', '.join(schema.names)}")
            kind = schema.field(name).type
            if not fits(kind):
                expected = "a number" if fits is _is_number else "an integer or a list of integers"
                raise DataError(f"{file}, column {name}: is of type {kind}, expected {expected}")
        return metadata


def _metadata(file: DataFile) -> pq.FileMetaData:
    with pq.ParquetFile(_readable(file)) as opened:
        return opened.metadata


def _readable(file: DataFile) -> str | BinaryIO:
    """Return what Arrow opens: it reads local files faster by their path."""
    return file.open() if file.path is None else file.place


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_lookup(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(pa.types.is_integer(kind.value_type if is_list else kind))


def _jagged(column: pa.ChunkedArray) -> Jagged:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of no chunk at all
        array = pa.array([], type=column.type)
    if pa.types.is_integer(array.type) and not array.null_count:
        return Jagged.of_lengths(array.to_numpy().astype(np.int64), np.ones(len(array), dtype=np.int64))
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(array.type):
        return Jagged.of_lengths(array.drop_null().to_numpy().astype(np.int64), present.astype(np.int64))
    lengths = array.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    flat = array.flatten()  # without what nulls may hide
    if flat.null_count:
        held = flat.is_valid().to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        lengths = np.bincount(owners[held], minlength=len(lengths))
        flat = flat.drop_null()
    return Jagged.of_lengths(flat.to_numpy().astype(np.int64), lengths)

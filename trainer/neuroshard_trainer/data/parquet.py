"""Parquet files: columns by name, ids as integers or texts, one per sample or lists of them. A row group is a block."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.id_columns import EXPECTED_IDS, IdColumn, holds_ids, id_type, is_list, is_text
from neuroshard_trainer.data.id_rules import id_rule_of
from neuroshard_trainer.data.recent import Recent
from neuroshard_trainer.data.repeats import changed_list, first_change
from neuroshard_trainer.data.samples import Feature, FloatArray, IndexArray, Jagged, Samples
from neuroshard_trainer.data.sessions import BlockSessions
from neuroshard_trainer.data.source import DecodedBlocks

_KEPT_FILES = 64
"""Files whose metadata stays in memory: reading it again for each row group costs more than decoding a small one."""


class ParquetSource(DecodedBlocks):
    """Parquet files of one schema.

    Args:
        files: in the order in which their rows count.
        features: each is a column of integers, texts, or lists of either; a null looks nothing up.
        label_column: 0 or 1.
        dense_columns: one number each.
        session_column: equal for the samples of a session. If unset: there are no sessions.
        time_column: orders the samples of a session. If unset: they are in order.
        constant: features whose lists are equal for all samples of a session.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        features: Sequence[Feature],
        *,
        label_column: str,
        dense_columns: Sequence[str],
        session_column: str | None = None,
        time_column: str | None = None,
        constant: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._constant = tuple(constant)
        self._session_column = session_column
        self._time_column = time_column
        self._features = features
        self._label_column = label_column
        self._dense_columns = dense_columns
        self._rules = {feature.name: id_rule_of(feature.table, DataFormat.PARQUET) for feature in features}
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
            raise DataError(
                f"{files[0]} and {len(files) - 1} more: hold no rows, expected at least one sample"
                "; hint: check spec.data.path"
            )
        self.block_sizes = tuple(sizes)

    def read(self, block: int) -> Samples:
        """Return a row group's samples. Raises DataError."""
        names = [self._label_column, *self._dense_columns, *(feature.name for feature in self._features)]
        if self._constant and self._session_column is not None:
            names.append(self._session_column)
        table = self._columns(block, names)
        dense = [self._numbers(table, name, block) for name in self._dense_columns]
        lookups = {feature.name: self._rows(table[feature.name], feature) for feature in self._features}
        if self._constant and self._session_column is not None:
            self._require_constant(lookups, table[self._session_column], block)
        return Samples(
            labels=self._numbers(table, self._label_column, block),
            dense=np.stack(dense, axis=1) if dense else np.zeros((len(table), 0), dtype=np.float32),
            lookups=lookups,
        )

    def place(self, block: int, row: int) -> str:
        """Return file and row; rows count from 0, as in pandas and Arrow."""
        file, _, first = self._blocks[block]
        return f"{file} row {first + row}"

    def sessions(self, block: int) -> BlockSessions:
        """Return the sessions of a row group. Raises DataError where a session or a time is null."""
        assert self._session_column is not None, "asked for where there are sessions"
        names = [name for name in (self._session_column, self._time_column) if name is not None]
        table = self._columns(block, names)
        for name in names:
            self._require_no_null(table, name, block)
        ids = session_ids(table[self._session_column])
        if self._time_column is None:
            return BlockSessions(ids=ids, times=np.arange(len(table)))
        return BlockSessions(ids=ids, times=_times(table[self._time_column]))

    def _columns(self, block: int, names: Sequence[str]) -> pa.Table:
        file, group, _ = self._blocks[block]
        try:
            metadata = self._metadata(file)
            encoded = text_columns(metadata, names)
            with pq.ParquetFile(_readable(file), metadata=metadata, read_dictionary=encoded) as opened:
                return opened.read_row_group(group, columns=list(names), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{file}: row group {group} cannot be read ({error}); hint: write the file again"
            ) from error

    def _require_no_null(self, table: pa.Table, name: str, block: int) -> None:
        column = table[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise DataError(f"{self.place(block, row)}, column {name}: is null; hint: fill it in or drop the row")

    def _require_constant(self, lookups: Mapping[str, Jagged], sessions: pa.ChunkedArray, block: int) -> None:
        found = first_change({name: lookups[name] for name in self._constant}, session_ids(sessions))
        if found is not None:
            raise DataError(
                changed_list(
                    found.feature,
                    sessions[found.row].as_py(),
                    place=self.place(block, found.row),
                    place_before=f"row {self._blocks[block][2] + found.row_before}",
                    found=found.listed,
                    found_before=found.listed_before,
                    setting="spec.data.constantInSession",
                )
            )

    def _rows(self, column: pa.ChunkedArray, feature: Feature) -> Jagged:
        return IdColumn.of(column).rows(self._rules[feature.name], feature.table.num_embeddings)

    def _numbers(self, table: pa.Table, name: str, block: int) -> FloatArray:
        self._require_no_null(table, name, block)
        numbers: FloatArray = table[name].cast(pa.float64()).to_numpy().astype(np.float32)
        return numbers

    def _checked_metadata(self, file: DataFile) -> pq.FileMetaData:
        """Return the file's metadata. Raises DataError where a column lacks or has a type that cannot be used."""
        try:
            metadata = self._metadata(file)
            schema = metadata.schema.to_arrow_schema()
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{file}: is not a Parquet file that can be read ({error}); hint: write it again, or leave it out"
            ) from error
        wanted = [
            *((name, _is_number) for name in (self._label_column, *self._dense_columns)),
            *((feature.name, holds_ids) for feature in self._features),
            *((name, is_session) for name in (self._session_column,) if name is not None),
            *((name, is_time) for name in (self._time_column,) if name is not None),
        ]
        for name, fits in wanted:
            if schema.names.count(name) > 1:
                raise DataError(f"{file}, column {name}: is there {schema.names.count(name)} times; hint: rename one")
            if name not in schema.names:
                raise DataError(
                    f"{file}: has no column {name!r} (found {', '.join(schema.names)})"
                    "; hint: add it, or rename the feature"
                )
            kind = schema.field(name).type
            if not fits(kind):
                raise DataError(
                    f"{file}, column {name}: is of type {kind}, expected {_EXPECTED[fits]}; hint: convert it"
                )
        for feature in self._features:
            require_rule(self._rules[feature.name], schema.field(feature.name).type, feature, where=str(file))
        return metadata


def _metadata(file: DataFile) -> pq.FileMetaData:
    with pq.ParquetFile(_readable(file)) as opened:
        return opened.metadata


def _readable(file: DataFile) -> str | BinaryIO:
    """Return the file for Arrow, which reads local files faster by their path."""
    return file.open() if file.path is None else file.place


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def require_rule(rule: IdRule, kind: pa.DataType, feature: Feature, *, where: str) -> None:
    """Do nothing if ids of a column's type have the rule. Raises DataError."""
    if is_text(id_type(kind)) and rule is not IdRule.HASH:
        raise DataError(
            f"{where}, column {feature.name}: holds texts, and table {feature.table.name!r} has the id rule {rule}, "
            "which is for integers; hint: set idRule: Hash for the table"
        )


def text_columns(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """Return the paths of those columns that hold texts, which are read as dictionaries: each text is hashed once."""
    schema = metadata.schema.to_arrow_schema()
    return [
        metadata.schema.column(leaf).path
        for name, leaf in zip(schema.names, leaves_of(schema), strict=True)
        if name in names and is_text(id_type(schema.field(name).type))
    ]


def leaves_of(schema: pa.Schema) -> list[int]:
    """Return the number of the first of the stored columns of each field; a struct has several."""

    def count(kind: pa.DataType) -> int:
        if pa.types.is_struct(kind):
            return sum(count(kind.field(index).type) for index in range(kind.num_fields))
        if pa.types.is_map(kind):
            return count(kind.key_type) + count(kind.item_type)
        return count(kind.value_type) if is_list(kind) else 1

    counts = [count(field.type) for field in schema]
    return [sum(counts[:index]) for index in range(len(counts))]


def is_session(kind: pa.DataType) -> bool:
    """Return whether values of a type can name sessions."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_time(kind: pa.DataType) -> bool:
    """Return whether values of a type can order samples."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


_EXPECTED: Mapping[Callable[[pa.DataType], bool], str] = {
    _is_number: "a number",
    holds_ids: EXPECTED_IDS,
    is_session: "an integer or a text, which names a session",
    is_time: "an integer or a timestamp",
}


def session_ids(column: pa.ChunkedArray) -> IndexArray:
    """Return [rows] sessions as 64-bit integers: integers as they are, texts by their hash (BLAKE2b)."""
    if pa.types.is_dictionary(column.type) and pa.types.is_integer(column.type.value_type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        return _whole_numbers(column)
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # of no chunk at all
        return np.zeros(0, dtype=np.int64)
    encoded = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    hashes = [
        int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
        for text in encoded.dictionary.to_pylist()
    ]
    ids: IndexArray = np.array(hashes, dtype=np.int64)[encoded.indices.to_numpy()]
    return ids


def _times(column: pa.ChunkedArray) -> IndexArray:
    """Return [rows] integers in the order of the times."""
    if not pa.types.is_uint64(column.type):
        return _whole_numbers(column)
    numbers: IndexArray = (column.to_numpy() ^ np.uint64(1 << 63)).view(np.int64)
    return numbers


def _whole_numbers(column: pa.ChunkedArray) -> IndexArray:
    """Return integers or timestamps, those of 64 bits without a sign wrapped around."""
    numbers: IndexArray = (column if pa.types.is_integer(column.type) else column.cast(pa.int64())).to_numpy()
    return numbers.astype(np.int64)

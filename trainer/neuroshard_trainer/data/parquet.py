"""Parquet files: columns by name, ids as integers or texts, one per sample or lists of them. A row group is a block."""

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.id_rules import id_rule_of
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError
from numpy.typing import NDArray

from neuroshard_trainer.data.distinct_lists import SUFFIX, distinct_columns, schema_of
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.id_columns import EXPECTED_IDS, IdColumn, holds_ids, id_type, is_text
from neuroshard_trainer.data.missing import FilledBlocks
from neuroshard_trainer.data.parquet_statistics import groups_outside, groups_with_nulls, leaves_of, repeated_texts
from neuroshard_trainer.data.recent import Recent
from neuroshard_trainer.data.samples import Feature, Jagged, Lists, Samples, SharedLists
from neuroshard_trainer.data.session_columns import is_session, is_time, require_constant, session_ids, times_of
from neuroshard_trainer.data.sessions import BlockSessions
from neuroshard_trainer.data.source import outside

_KEPT_FILES = 64
"""Files that stay open, and whose metadata stays in memory: opening and reading them again for each row group costs
more than decoding a small one."""


class ParquetSource(FilledBlocks):
    """Parquet files of one schema. Types, nulls, and ids of all files are checked by their footers when it is made.

    Args:
        files: in the order in which their rows count.
        features: each is a column of integers, texts, or lists of either; a null looks nothing up.
        label_column: 0 or 1.
        dense_columns: one number each.
        missing: what a dense column is where it is null or NaN.
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
        missing: Missing = Missing.ERROR,
        session_column: str | None = None,
        time_column: str | None = None,
        constant: Sequence[str] = (),
    ) -> None:
        super().__init__(dense_columns, missing)
        self._constant = tuple(constant)
        self._session_column = session_column
        self._time_column = time_column
        self._features = features
        self._label_column = label_column
        self._rules = {feature.name: id_rule_of(feature.table, DataFormat.PARQUET) for feature in features}
        self._metadata = Recent(_metadata, capacity=_KEPT_FILES)
        self._opened = Recent(self._open, capacity=_KEPT_FILES)
        self._repeated = Recent(self._repeated_texts, capacity=_KEPT_FILES)
        self._distinct = Recent(self._distinct_columns, capacity=_KEPT_FILES)
        self._sessions = Recent(self._block_sessions, capacity=1)  # what is held out, then the order of the others
        self._blocks: list[tuple[DataFile, int, int]] = []  # file, row group, first row
        sizes: list[int] = []
        kinds: dict[str, tuple[str, DataFile]] = {}
        for file in files:
            metadata = self._checked_metadata(file)
            schema = schema_of(metadata)
            self._require_same_kinds(file, schema, kinds)
            for feature in features:
                require_rule(self._rules[feature.name], schema.field(feature.name).type, feature, where=str(file))
            first, first_block = 0, len(self._blocks)
            for group in range(metadata.num_row_groups):
                self._blocks.append((file, group, first))
                sizes.append(metadata.row_group(group).num_rows)
                first += sizes[-1]
            self._require_values(metadata, first_block)
        self.text_features = tuple(feature.name for feature in features if kinds[feature.name][0] == _TEXTS)
        """Features whose ids are texts."""
        if not sum(sizes):
            raise DataError(
                f"{files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}: no rows, expected at least one "
                "sample; hint: check spec.data.path"
            )
        self.block_sizes = tuple(sizes)

    @property
    def num_blocks(self) -> int:
        """Number of row groups."""
        return len(self.block_sizes)

    def dense_column(self, block: int, name: str) -> NDArray[np.float64]:
        """Return a dense column of a row group, NaN where it is null. Raises DataError."""
        return _numbers(self._columns(block, [name])[name])

    def read(self, block: int) -> Samples:
        """Return a row group's samples. Raises DataError."""
        names = [self._label_column, *self._dense_columns, *(feature.name for feature in self._features)]
        if self._constant and self._session_column is not None:
            names.append(self._session_column)
        table = self._columns(block, names)
        for name in self._required:
            self._require_no_null(table, name, block)
        dense = [_numbers(table[name]) for name in self._dense_columns]
        lookups = {feature.name: self._rows(table[feature.name], feature, block) for feature in self._features}
        if self._constant and self._session_column is not None:
            require_constant(
                {name: lookups[name].by_sample for name in self._constant},
                table[self._session_column],
                place=lambda row: self.place(block, row),
                file=str(self._blocks[block][0]),
            )
        return Samples(
            labels=_numbers(table[self._label_column]).astype(np.float32),
            dense=self.filled(dense, block),
            lookups=lookups,
        )

    def place(self, block: int, row: int) -> str:
        """Return file and row; rows count from 0, as in pandas and Arrow."""
        file, _, first = self._blocks[block]
        return f"{file} row {first + row}"

    def sessions(self, block: int) -> BlockSessions:
        """Return the sessions of a row group. Raises DataError where a session or a time is null."""
        return self._sessions(block)

    def _block_sessions(self, block: int) -> BlockSessions:
        assert self._session_column is not None, "asked for where there are sessions"
        names = [name for name in (self._session_column, self._time_column) if name is not None]
        table = self._columns(block, names)
        for name in names:
            self._require_no_null(table, name, block)
        ids = session_ids(table[self._session_column])
        if self._time_column is None:
            return BlockSessions(ids=ids, times=np.arange(len(table)))
        return BlockSessions(ids=ids, times=times_of(table[self._time_column]))

    def _columns(self, block: int, names: Sequence[str]) -> pa.Table:
        file, group, _ = self._blocks[block]
        try:
            opened = self._opened((file, get_ident())) if file.path is not None else self._open((file, 0))
            distinct = self._distinct(file)
            stored = {f"{name}{SUFFIX}" if name in distinct else name: name for name in names}
            table = opened.read_row_group(group, columns=list(stored), use_threads=False)
            return table.rename_columns([stored[name] for name in table.column_names])
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{file}: row group {group} cannot be read ({one_line(error)}); hint: write the file again"
            ) from error

    def _open(self, file_and_thread: tuple[DataFile, int]) -> pq.ParquetFile:
        """Return a file to read row groups of, in one thread: opening it takes as long as a few columns of one."""
        file, _ = file_and_thread
        encoded = list(self._repeated(file).values())
        return pq.ParquetFile(_readable(file), metadata=self._metadata(file), read_dictionary=encoded)

    def _repeated_texts(self, file: DataFile) -> Mapping[str, str]:
        """Return the columns of ids and sessions of a file that are read as dictionaries."""
        sessions = [] if self._session_column is None else [self._session_column]
        return repeated_texts(self._metadata(file), [*(feature.name for feature in self._features), *sessions])

    def _require_no_null(self, table: pa.Table, name: str, block: int, *, num_nulls: int | None = None) -> None:
        """Do nothing if a column of a row group has no null; ``num_nulls`` are those of the file, if it tells them."""
        column = table[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            more = f", as in {num_nulls:,} rows of the file" if num_nulls is not None and num_nulls > 1 else ""
            or_fill = ", or set spec.data.missing" if name in self._dense_columns else ""
            raise DataError(
                f"{self.place(block, row)}, column {name}: is null{more}; hint: fill it in or drop the row{or_fill}"
            )

    def _distinct_columns(self, file: DataFile) -> tuple[str, ...]:
        """Return the features of which a file has distinct lists."""
        return distinct_columns(self._metadata(file).schema.to_arrow_schema())

    def _rows(self, column: pa.ChunkedArray, feature: Feature, block: int) -> Lists:
        """Return the rows that a feature looks up in a row group. Raises DataError."""
        file, _, _ = self._blocks[block]
        found = IdColumn.of(column).rows(self._rules[feature.name], feature.table.num_embeddings)
        if not column.null_count or feature.name not in self._distinct(file):
            return found
        has_list = column.is_valid().to_numpy()
        if not has_list[0]:
            raise DataError(
                f"{self.place(block, 0)}, column {feature.name}{SUFFIX}: is null at the start of a row group"
                "; hint: cluster the log again"
            )
        lists = Jagged(values=found.values, lengths=found.lengths[has_list])
        return SharedLists(lists=lists, of_sample=np.cumsum(has_list) - 1)

    @property
    def _required(self) -> tuple[str, ...]:
        """Columns of samples that may have no null."""
        return (self._label_column, *(self._dense_columns if self._missing is Missing.ERROR else ()))

    def _require_values(self, metadata: pq.FileMetaData, first_block: int) -> None:
        """Do nothing unless a footer tells of nulls or of ids outside their table. Raises DataError with the row."""
        leaves = leaves_of(schema_of(metadata))
        aside = [name for name in (self._session_column, self._time_column) if name is not None]
        for name in (*self._required, *aside):
            nulls = dict(groups_with_nulls(metadata, leaves[name]))
            for block in (first_block + group for group in nulls):
                self._require_no_null(self._columns(block, [name]), name, block, num_nulls=sum(nulls.values()))
        for feature in self._features:
            if self._rules[feature.name] is not IdRule.EXACT:
                continue
            for group in groups_outside(metadata, leaves[feature.name], feature.table.num_embeddings):
                block = first_block + group
                column = self._columns(block, [feature.name])[feature.name]
                found = outside(self._rows(column, feature, block), feature)
                if found is not None:
                    row, problem = found
                    raise DataError(f"{self.place(block, row)}: {problem}")

    def _require_same_kinds(self, file: DataFile, schema: pa.Schema, kinds: dict[str, tuple[str, DataFile]]) -> None:
        """Do nothing if columns hold what they hold in the files before. Raises DataError."""
        aside = [name for name in (self._session_column, self._time_column) if name is not None]
        for name in (*(feature.name for feature in self._features), *aside):
            kind = _kind_of(schema.field(name).type)
            first, other = kinds.setdefault(name, (kind, file))
            if first != kind:
                raise DataError(
                    f"{file}, column {name}: holds {kind}, in {other} {first}"
                    "; hint: write both files with the same types"
                )

    def _checked_metadata(self, file: DataFile) -> pq.FileMetaData:
        """Return the file's metadata. Raises DataError where a column lacks or has a type that cannot be used."""
        try:
            metadata = self._metadata(file)
            schema = schema_of(metadata)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{file}: is not a Parquet file that can be read ({one_line(error)})"
                "; hint: write it again, or leave it out"
            ) from error
        wanted = [
            *((name, is_number) for name in (self._label_column, *self._dense_columns)),
            *((feature.name, holds_ids) for feature in self._features),
            *((name, is_session) for name in (self._session_column,) if name is not None),
            *((name, is_time) for name in (self._time_column,) if name is not None),
        ]
        for name, fits in wanted:
            if schema.names.count(name) > 1:
                raise DataError(f"{file}, column {name}: is there {schema.names.count(name)} times; hint: rename one")
            if name not in schema.names:
                raise DataError(
                    f"{file}: has no column {name!r} (found {', '.join(schema.names) or 'none'})"
                    "; hint: add it, or rename the feature"
                )
            kind = schema.field(name).type
            if not fits(kind):
                raise DataError(
                    f"{file}, column {name}: is of type {kind}, expected {_EXPECTED[fits]}; hint: {_remedy(fits, kind)}"
                )
        return metadata


def _metadata(file: DataFile) -> pq.FileMetaData:
    with pq.ParquetFile(_readable(file)) as opened:
        return opened.metadata


def _readable(file: DataFile) -> str | BinaryIO:
    """Return the file for Arrow, which reads local files faster by their path."""
    return file.open() if file.path is None else file.place


def one_line(error: Exception) -> str:
    """Return the text of an error of Arrow without its line breaks."""
    return " ".join(str(error).split())


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of a type can be labels or dense features."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in kinds)


_TEXTS = "texts"


def _kind_of(kind: pa.DataType) -> str:
    """Return the kind of a type; equal values of one kind are equal ids, sessions, or times, whatever their file."""
    inner = id_type(kind)
    if is_text(inner):
        return _TEXTS
    if pa.types.is_timestamp(inner):
        return f"times in zone {inner.tz}" if inner.tz else "times without a zone"
    return "integers"


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return numbers, NaN for nulls."""
    numbers: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()  # rounded to FP32 in any case
    return numbers


def require_rule(rule: IdRule, kind: pa.DataType, feature: Feature, *, where: str) -> None:
    """Do nothing if ids of a column's type have the rule. Raises DataError."""
    if is_text(id_type(kind)) and rule is not IdRule.HASH:
        raise DataError(
            f"{where}, column {feature.name}: holds texts, and table {feature.table.name!r} has the id rule {rule}, "
            "which is for integers; hint: set idRule: Hash for the table"
        )


_EXPECTED: Mapping[Callable[[pa.DataType], bool], str] = {
    is_number: "a number",
    holds_ids: EXPECTED_IDS,
    is_session: "an integer or a text, which names a session",
    is_time: "an integer or a timestamp",
}


def _remedy(fits: Callable[[pa.DataType], bool], kind: pa.DataType) -> str:
    """Return the remedy for a column of another type."""
    if fits is is_number:
        return "write numbers (0 or 1 as the label)"
    if fits is holds_ids and pa.types.is_floating(id_type(kind)):
        return "write integers (pandas keeps them next to nulls as Int64)"
    return "write the column with one of these types"

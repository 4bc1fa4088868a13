"""CSV files with a header, also compressed, read by blocks of lines; `csv_lines` parses them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.id_rules import id_rule_of
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError
from numpy.typing import NDArray

from neuroshard_trainer.data.csv_lines import CsvHeader, CsvLineError, csv_header, parse_csv, time_kind
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.id_columns import IdColumn
from neuroshard_trainer.data.line_index import LINES_PER_BLOCK, index_of
from neuroshard_trainer.data.missing import FilledBlocks
from neuroshard_trainer.data.samples import Feature, Samples
from neuroshard_trainer.data.session_columns import require_constant, session_ids, times_of
from neuroshard_trainer.data.sessions import BlockSessions
from neuroshard_trainer.data.unpack import UNPACKING_ERRORS, damaged, text_of, unpacked

_CHANGED = "the file was changed since the training began; do not change data under a running job, start it again"


class CsvSource(FilledBlocks):
    """CSV files; each has a header of its own, with the columns in any order.

    Args:
        files: plain or compressed, in the order in which their lines count.
        features: each is a column of one id per sample; an empty cell looks nothing up.
        label_column: 0 or 1.
        dense_columns: one number each.
        missing: what a dense column is where its cell is empty or NaN.
        session_column: equal for the samples of a session. If unset: there are no sessions.
        time_column: orders the samples of a session: integers or times. If unset: they are in order.
        constant: features that are equal for all samples of a session.
        spare: folder for indexes that cannot be next to their file, and for unpacked copies.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        features: Sequence[Feature],
        *,
        label_column: str,
        dense_columns: Sequence[str],
        missing: Missing,
        spare: Path,
        session_column: str | None = None,
        time_column: str | None = None,
        constant: Sequence[str] = (),
    ) -> None:
        super().__init__(dense_columns, missing)
        self._session_column, self._time_column = session_column, time_column
        self._constant = tuple(constant)
        self._features = features
        self._label_column = label_column
        self._rules = {feature.name: id_rule_of(feature.table, DataFormat.CSV) for feature in features}
        types = column_types(features, label_column=label_column, dense_columns=dense_columns)
        self._read = tuple(types)
        """Columns of samples."""
        self._files = files
        self._types = types if session_column is None else {**types, session_column: pa.string()}
        aside = () if time_column is None else (time_column,)
        self._headers = [opened_header(file, (*self._types, *aside)) for file in files]
        if time_column is not None:
            self._types[time_column] = time_kind(_first_line(files[0]), self._headers[0], time_column, files[0])
        self._plain = [unpacked(file, spare=spare) for file in files]
        indexes = [index_of(file, spare=spare) for file in self._plain]
        self._offsets = [index.offsets for index in indexes]
        sizes = [index.block_sizes for index in indexes]
        for each in sizes:
            each[0] -= 1  # the header
        self._first_block = np.cumsum([0, *(len(each) for each in sizes)])
        self.block_sizes = np.concatenate(sizes)
        if not self.block_sizes.sum():
            raise DataError(f"{files[0]}: has a header and no samples; hint: check spec.data.path")

    @property
    def num_blocks(self) -> int:
        """Number of blocks of lines."""
        return len(self.block_sizes)

    def dense_column(self, block: int, name: str) -> NDArray[np.float64]:
        """Return a dense column of a block, NaN where a cell is empty. Raises DataError."""
        return _numbers(self._columns(block, [name])[name])

    def read(self, block: int) -> Samples:
        """Return a block's samples. Raises DataError with line and column."""
        constant = self._constant if self._session_column is not None else ()
        table = self._columns(block, [*self._read, *([str(self._session_column)] if constant else [])])
        self._require_values(
            table, block, (self._label_column, *(self._dense_columns if self._missing is Missing.ERROR else ()))
        )
        lookups = {
            feature.name: IdColumn.of(table[feature.name]).rows(self._rules[feature.name], feature.table.num_embeddings)
            for feature in self._features
        }
        if constant:
            require_constant(
                {name: lookups[name] for name in constant},
                table[self._session_column],
                place=lambda row: self.place(block, row),
                file=str(self._files[self._within(block)[0]]),
            )
        return Samples(
            labels=_numbers(table[self._label_column]).astype(np.float32),
            dense=self.filled([_numbers(table[name]) for name in self._dense_columns], block),
            lookups=lookups,
        )

    def sessions(self, block: int) -> BlockSessions:
        """Return the sessions of a block. Raises DataError where a session or a time is empty."""
        assert self._session_column is not None, "asked for where there are sessions"
        names = [name for name in (self._session_column, self._time_column) if name is not None]
        table = self._columns(block, names)
        self._require_values(table, block, names)
        ids = session_ids(table[self._session_column])
        times = np.arange(len(table)) if self._time_column is None else times_of(table[self._time_column])
        return BlockSessions(ids=ids, times=times)

    def _require_values(self, table: pa.Table, block: int, names: Sequence[str]) -> None:
        """Do nothing if no cell of some columns is empty. Raises DataError with line and column."""
        for name in names:
            if table[name].null_count:
                row = int(np.flatnonzero(table[name].is_null().to_numpy())[0])
                or_fill = ", or set spec.data.missing" if name in self._dense_columns else ""
                raise DataError(
                    f"{self.place(block, row)}, column {name}: is empty; hint: fill it in or drop the line{or_fill}"
                )

    def place(self, block: int, row: int) -> str:
        """Return file and line; line 1 is the header."""
        file, within = self._within(block)
        return f"{self._files[file]} line {within * LINES_PER_BLOCK + row + (1 if within else 2)}"

    def _within(self, block: int) -> tuple[int, int]:
        """Return the number of a block's file, and the block's number there."""
        file = int(np.searchsorted(self._first_block, block, side="right")) - 1
        return file, block - int(self._first_block[file])

    def _columns(self, block: int, names: Sequence[str]) -> pa.Table:
        file, within = self._within(block)
        begin, end = (int(offset) for offset in self._offsets[file][within : within + 2])
        if not within:
            begin += self._headers[file].num_bytes
        text = self._plain[file].read(begin, end - begin)
        if len(text) < end - begin:
            raise DataError(f"{self.place(block, 0)}: {_CHANGED}")
        try:
            table = parse_csv(text, self._headers[file], {name: self._types[name] for name in names})
        except CsvLineError as error:
            raise DataError(f"{self.place(block, error.row)}: {error}") from error
        if len(table) != self.block_sizes[block]:
            raise DataError(f"{self.place(block, 0)}: {_CHANGED}")
        return table


def column_types(
    features: Sequence[Feature], *, label_column: str, dense_columns: Sequence[str]
) -> dict[str, pa.DataType]:
    """Return the types of the columns that a model needs."""
    types = dict.fromkeys((label_column, *dense_columns), pa.float64())
    for feature in features:
        is_hashed = id_rule_of(feature.table, DataFormat.CSV) is IdRule.HASH
        types[feature.name] = pa.string() if is_hashed else pa.int64()
    return types


def opened_header(file: DataFile, names: Sequence[str]) -> CsvHeader:
    """Return the header of a file that has these columns. Raises DataError."""
    with text_of(file) as stream:
        try:
            line = stream.readline()
        except UNPACKING_ERRORS as error:
            raise damaged(file, error) from error
    header = csv_header(line, file)
    header.require(names, file)
    return header


def _first_line(file: DataFile) -> bytes:
    """Return the first line behind the header; empty where there is none. Raises DataError."""
    with text_of(file) as stream:
        try:
            stream.readline()
            return stream.readline()
        except UNPACKING_ERRORS as error:
            raise damaged(file, error) from error


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = column.to_numpy()
    return numbers

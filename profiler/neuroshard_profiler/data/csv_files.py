"""CSV files with a header as batches of ids, by the trainer's own parser."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from neuroshard_api.process.errors import DataError
from neuroshard_costs.shards import IndexArray
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.unpack import UNPACKING_ERRORS, damaged, text_of
from numpy.typing import NDArray

from neuroshard_profiler.data.batches import DataBatch, FeatureBatch
from neuroshard_profiler.data.columns import chosen_columns
from neuroshard_profiler.data.doubts import doubt_of_cells
from neuroshard_profiler.data.numbers import SeenNumbers

if TYPE_CHECKING:
    import pyarrow as pa
    from neuroshard_trainer.data.csv_lines import CsvHeader

_SHOWN_LINES = 1000
"""Lines by which columns of fractions are distinguished from ids."""


class CsvFile:
    """Columns of one id per sample, as texts; an empty cell looks nothing up. Fractions and times are passed over."""

    ids_are_rows = True

    def __init__(
        self,
        file: DataFile,
        *,
        features: Sequence[str],
        session: str | None,
        label: str | None,
        ignored: Sequence[str],
        dense: Sequence[str],
    ) -> None:
        import pyarrow as pa  # noqa: PLC0415 - only where CSV is read
        from neuroshard_trainer.data.csv_lines import csv_header, lines_of  # noqa: PLC0415 - needs pyarrow

        self._file = file
        with text_of(file) as stream:
            try:
                self._header = csv_header(stream.readline(), file)
                shown = lines_of(stream, _SHOWN_LINES)
            except UNPACKING_ERRORS as error:
                raise damaged(file, error) from error
        if not shown:
            raise DataError(f"{file}: has a header and no samples; hint: leave the file out, or write it again")
        names = tuple(dict.fromkeys(name for name in self._header.names if name and name not in ignored))
        self._header.require((*features, *names), file)
        table = _parsed(shown, self._header, dict.fromkeys(names, pa.string()), file, first_line=2)
        fractions = [name for name in names if _are_fractions(table[name])]
        times = [name for name in names if _are_times(table[name])]
        self.columns = chosen_columns(
            {name: _kind(name, fractions, times) for name in self._header.names},
            [name for name in self._header.names if name not in {*fractions, *times}],
            features=features,
            label=label,
            session=session,
            time=None,
            ignored=ignored,
            where=str(file),
            numbers=fractions,
            dense=dense,
        )
        if not self.columns.has_label and (values := [name for name in self._header.names if _is_value(name)]):
            raise DataError(
                f"{file} line 1: holds values (found {', '.join(values[:3])}), expected the names of columns"
                "; hint: add a line with them, or give --label if numbers are names"
            )
        self._session = session
        self._texts = frozenset(name for name in names if _numbers(table[name]) is None)
        """Columns that hold other texts than numbers."""
        looked_up = [name for name in self.columns.features if name in self._texts]
        found = {name: doubt_of_cells(name, table[name].drop_null().to_pylist()) for name in looked_up}
        self.doubts = {name: doubt for name, doubt in found.items() if doubt is not None}
        """Questions on columns that are looked up."""

    @property
    def num_samples(self) -> None:
        """None: the number is unknown before the file is read."""

    @property
    def num_dense(self) -> int:
        """Number of dense columns."""
        return len(self.columns.dense)

    def not_a_number(self, name: str) -> str | None:
        """Return the type of a column that holds no numbers. None: it holds numbers."""
        return "texts" if name in self._texts else None

    def batches(self, num_samples: int, numbers: SeenNumbers | None = None) -> Iterator[DataBatch]:
        """Yield batches. Raises DataError with line and column."""
        import pyarrow as pa  # noqa: PLC0415 - only where CSV is read
        from neuroshard_trainer.data.csv_lines import lines_of  # noqa: PLC0415 - needs pyarrow

        read = (*self.columns.features, *([self._session] if self._session else []))
        types = dict.fromkeys(read, pa.string())
        if numbers is not None:
            self._header.require(numbers.names, self._file)
            types |= dict.fromkeys(numbers.names, pa.float64())
        first_line = 2
        with text_of(self._file) as stream:
            try:
                stream.readline()
                while text := lines_of(stream, num_samples):
                    table = _parsed(text, self._header, types, self._file, first_line=first_line)
                    sessions = None if self._session is None else self._sessions(table[self._session], first_line)
                    if numbers is not None:
                        columns = {name: table[name].to_numpy() for name in numbers.names}
                        numbers.take(columns, self._places(first_line))
                    first_line += len(table)
                    yield DataBatch(
                        num_samples=len(table),
                        features={name: _ids(table[name]) for name in self.columns.features},
                        sessions=sessions,
                    )
            except UNPACKING_ERRORS as error:
                raise damaged(self._file, error) from error

    def _places(self, first_line: int) -> Callable[[int], str]:
        """Return the names of lines, counted from a first one on."""
        return lambda row: f"{self._file} line {first_line + row}"

    def _sessions(self, column: "pa.ChunkedArray", first_line: int) -> IndexArray:
        from neuroshard_trainer.data.session_columns import session_ids  # noqa: PLC0415 - needs pyarrow

        if column.null_count:
            line = first_line + int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise DataError(
                f"{self._file} line {line}, column {self._session}: is empty; hint: fill it in or drop the line"
            )
        return session_ids(column)


def _parsed(
    text: bytes, header: "CsvHeader", types: "Mapping[str, pa.DataType]", file: DataFile, *, first_line: int
) -> "pa.Table":
    from neuroshard_trainer.data.csv_lines import CsvLineError, parse_csv  # noqa: PLC0415 - needs pyarrow

    try:
        return parse_csv(text, header, types)
    except CsvLineError as error:
        raise DataError(f"{file} line {first_line + error.row}: {error}") from error


def _ids(column: "pa.ChunkedArray") -> FeatureBatch:
    from neuroshard_trainer.data.id_columns import IdColumn  # noqa: PLC0415 - needs pyarrow

    found = IdColumn.of(column.dictionary_encode())
    numbers = _integers(found.values.dictionary)
    return FeatureBatch(
        lengths=found.lengths,
        ids=found.identities(),
        are_texts=True,
        numbers=None if numbers is None else numbers[found.values.indices.to_numpy()],
    )


def _integers(texts: "pa.Array") -> IndexArray | None:
    """Return texts that all are integers; None: some are not."""
    import pyarrow as pa  # noqa: PLC0415 - only where CSV is read

    try:
        numbers: IndexArray = texts.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers


def _is_value(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _kind(name: str, fractions: Collection[str], times: Collection[str]) -> str:
    return "fractions" if name in fractions else "times" if name in times else "texts"


def _are_times(column: "pa.ChunkedArray") -> bool:
    import pyarrow as pa  # noqa: PLC0415 - only where CSV is read
    from neuroshard_trainer.data.csv_lines import TIME_KINDS  # noqa: PLC0415 - needs pyarrow

    for kind in TIME_KINDS:
        if pa.types.is_timestamp(kind):
            with suppress(pa.ArrowInvalid):
                return len(column.drop_null().cast(kind)) > 0
    return False


def _are_fractions(column: "pa.ChunkedArray") -> bool:
    numbers = _numbers(column)
    return numbers is not None and bool((numbers != np.floor(numbers)).any())


def _numbers(column: "pa.ChunkedArray") -> NDArray[np.float64] | None:
    """Return the values of a column of texts, without empty ones. None: some are no numbers."""
    import pyarrow as pa  # noqa: PLC0415 - only where CSV is read

    try:
        numbers: NDArray[np.float64] = column.drop_null().cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers

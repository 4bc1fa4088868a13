"""Lines of CSV files as columns. The one parser of the format: the trainer and `neuroshard stats` share it.

A file has a header, and one sample per line: a value holds no line break. Columns are separated by commas, in files
whose names end in .tsv or .txt by tabs. An empty cell is a null. Ids of the rules Exact and Modulo are integers; under
Hash the text of the cell is hashed, whatever it looks like.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.line_index import require_text
from neuroshard_trainer.data.unpack import COMPRESSED

_TABBED = (".tsv", ".txt")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KINDS: Mapping[pa.DataType, str] = {
    pa.int64(): "an integer of 64 bits",
    pa.float64(): "a number",
    pa.string(): "a text",
    pa.timestamp("ns"): "a time without a zone",
    pa.timestamp("ns", "UTC"): "a time with a zone",
}
TIME_KINDS = (pa.int64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
"""Types of times."""
_SHOWN = 40
_OTHER_SEPARATORS = {",": (";", "\t", "|"), "\t": (",", ";", "|")}
_REMEDIES = {
    ",": "write commas, or tabs and a name that ends in .tsv",
    "\t": "write tabs, or commas and a name that ends in .csv",
}


class CsvLineError(ValueError):
    """A line breaks the format.

    Args:
        row: number of the line among those that were parsed, from 0 on.
        problem: what is wrong with it.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvHeader:
    """The first line of a file."""

    names: tuple[str, ...]
    delimiter: str
    num_bytes: int
    """Of the line with its end."""
    line: bytes
    """The line without its end."""

    def require(self, names: Sequence[str], file: DataFile) -> None:
        """Do nothing if each column is there once. Raises DataError."""
        for name in names:
            count = self.names.count(name)
            if not count:
                raise DataError(
                    f"{file} line 1: has no column {name!r} (found {', '.join(self.names)})"
                    "; hint: add it, or rename the feature"
                )
            if count > 1:
                raise DataError(f"{file} line 1, column {name}: is there {count} times; hint: rename one")


def csv_header(line: bytes, file: DataFile) -> CsvHeader:
    """Return the header in the first line of a file. Raises DataError."""
    name = file.name.lower()
    packed = next((suffix for suffix in COMPRESSED if name.endswith(suffix)), "")
    delimiter = "\t" if name.removesuffix(packed).endswith(_TABBED) else ","
    require_text(file, line)
    try:
        text = line.removeprefix(_BYTE_ORDER_MARK).decode().rstrip("\r\n")
        names = next(csv.reader([text], delimiter=delimiter)) if text else []
    except UnicodeDecodeError as error:
        raise DataError(f"{file} line 1: is not UTF-8 ({error.reason}); hint: write it as UTF-8") from error
    except csv.Error as error:
        raise DataError(
            f"{file} line 1: is not a header ({error}); hint: name the columns in line 1, and end lines with "
            r"\n or \r\n"
        ) from error
    if not names:
        empty = "is empty" if not line else "line 1 is empty"
        raise DataError(f"{file}: {empty}, expected a header and one sample per line; hint: write it again")
    if len(names) == 1 and (other := next((each for each in _OTHER_SEPARATORS[delimiter] if each in text), None)):
        separated = "a tab" if delimiter == "\t" else "a comma"
        raise DataError(
            f"{file} line 1: has one column (found {text[:_SHOWN]!r}), and columns are separated by {separated}, not "
            f"by {other!r}; hint: {_REMEDIES[delimiter]}"
        )
    if text.startswith("{"):
        raise DataError(f"{file} line 1: holds JSON, expected the names of columns; hint: write CSV or Parquet")
    spaced = next((each for each in names if each != each.strip()), None)
    if spaced is not None:
        raise DataError(
            f"{file} line 1: the name {spaced!r} begins or ends with a space; hint: write no spaces next to separators"
        )
    return CsvHeader(names=tuple(names), delimiter=delimiter, num_bytes=len(line), line=line.rstrip(b"\r\n"))


def parse_csv(text: bytes, header: CsvHeader, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return columns of whole lines without the header; the last line may lack its newline.

    Args:
        text: the lines.
        header: of the file.
        types: of the columns that are returned: int64, float64, string, or one of TIME_KINDS.

    Raises:
        CsvLineError: a line breaks the format.
    """
    if not text:
        return pa.table({name: pa.array([], kind) for name, kind in types.items()})
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(
                column_names=list(header.names), use_threads=False, block_size=max(len(text), 1) + 1
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=header.delimiter),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(types),
                null_values=[""],
                strings_can_be_null=True,
                true_values=[],
                false_values=[],
            ),
        )
    except pa.ArrowInvalid as error:
        raise _first_fault(text, header, types, str(error)) from error
    if len(table) != text.count(b"\n") + (not text.endswith(b"\n")):
        raise _first_fault(text, header, types, "lines and samples differ in number")
    if b"\0" in text or header.line in text:
        fault = _first_oddity(text, header)
        if fault is not None:
            raise fault
    return table


def _first_oddity(text: bytes, header: CsvHeader) -> CsvLineError | None:
    """Return the error of the first line that Arrow takes for a sample and is none; None: there is none."""
    faults = ((row, _oddity(line, header)) for row, line in enumerate(io.BytesIO(text)))
    return next((CsvLineError(row, fault) for row, fault in faults if fault is not None), None)


def _oddity(line: bytes, header: CsvHeader) -> str | None:
    if b"\0" in line:
        return "holds a byte of value 0; hint: write the file as UTF-8 text"
    if line.rstrip(b"\r\n") == header.line:
        return "repeats the header; hint: remove the line"
    return None


def _first_fault(text: bytes, header: CsvHeader, types: Mapping[str, pa.DataType], problem: str) -> CsvLineError:
    """Return the error of the first line that breaks the format; there is one."""
    for row, line in enumerate(io.BytesIO(text)):
        found = _fault(line, header, types)
        if found is not None:
            return CsvLineError(row, found)
    return CsvLineError(0, f"cannot be parsed ({problem}); hint: check the quotes of the lines from here on")


def _fault(line: bytes, header: CsvHeader, types: Mapping[str, pa.DataType]) -> str | None:
    """Return the fault of a line; None: it has none."""
    try:
        decoded = line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        return f"is not UTF-8 ({error.reason}); hint: write the file as UTF-8"
    odd = _oddity(line, header) if decoded else "is empty, expected a sample; hint: remove the line"
    if odd is not None:
        return odd
    if decoded.count('"') % 2:
        return (
            "has a quote that does not end in the line; hint: double quotes in values, and write no line breaks there"
        )
    try:
        cells = next(csv.reader([decoded], delimiter=header.delimiter))
    except csv.Error as error:
        return f"cannot be parsed ({error}); hint: write one sample per line"
    return _cell_fault(cells, header, types)


def _cell_fault(cells: Sequence[str], header: CsvHeader, types: Mapping[str, pa.DataType]) -> str | None:
    if len(cells) != len(header.names):
        return (
            f"has {len(cells)} columns, the header has {len(header.names)}"
            "; hint: quote values that hold the separator, and write no line breaks in values"
        )
    for name, cell in zip(header.names, cells, strict=True):
        if name in types and not _fits(cell, types[name]):
            shown = cell[:_SHOWN] + ("..." if len(cell) > _SHOWN else "")
            return f"column {name}: is not {_KINDS[types[name]]} (found {shown!r}); {_hint(types[name])}"
    return None


def _fits(cell: str, kind: pa.DataType) -> bool:
    if not cell or kind == pa.string():
        return True
    try:
        pa.array([cell]).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def time_kind(line: bytes, header: CsvHeader, name: str, file: DataFile) -> pa.DataType:
    """Return the type of a column of times by the first sample of the first file. Raises DataError.

    Args:
        line: the second of the file; without it there are no samples.
        header: of the file.
        name: of the column.
        file: for errors.
    """
    try:
        cells = parse_csv(line, header, {name: pa.string()})[name].to_pylist()
    except CsvLineError as error:
        raise DataError(f"{file} line 2: {error}") from error
    found = next((kind for kind in TIME_KINDS if not cells or (cells[0] and _fits(cells[0], kind))), None)
    if found is None:
        raise DataError(
            f"{file} line 2: column {name}: is neither an integer nor a time (found {cells[0] or ''!r}); hint: write "
            "integers, or times such as 2026-01-31 12:00:00"
        )
    return found


def _hint(kind: pa.DataType) -> str:
    if kind in TIME_KINDS[1:]:
        return "hint: write all times as that of the first sample"
    if kind == pa.int64():
        return "hint: write integers, or set idRule: Hash for the table"
    return "hint: write a number (0 or 1 as the label), and nothing where it is missing"


def lines_of(stream: BinaryIO, count: int) -> bytes:
    """Return the next lines of a stream, at most that many."""
    return b"".join(islice(stream, count))

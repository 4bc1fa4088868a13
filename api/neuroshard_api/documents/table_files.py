"""Table sets as people write them: YAML, JSON, or a CSV with one table per line. Reads files, writes none.

YAML and JSON may also have tables as TorchRec's scripts have them (`foreign_tables`).
"""

import csv
import io
import re
from difflib import get_close_matches
from pathlib import Path

from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, parse_data, read_text, validated
from neuroshard_api.documents.foreign_tables import table_set_of_data
from neuroshard_api.documents.tables import TableSet

REQUIRED_COLUMNS = ("name", "num_embeddings", "embedding_dim", "pooling_factor")
OPTIONAL_COLUMNS = (
    "data_type",
    "feature_names",
    "zipf_exponent",
    "id_rule",
    "colocation_group",
    "pooling",
    "is_weighted",
    "optimizer",
    "collection",
)
FEATURE_SEPARATOR = "|"
"""Between the names in a cell of feature_names."""

SUFFIXES = (".csv", ".json", ".yaml", ".yml")
"""Of files that hold a table set."""

_OTHER_SEPARATORS = (";", "\t", "|")
"""That spreadsheets write in the place of commas."""
_INTEGERS = ("num_embeddings", "embedding_dim")
_NUMBERS = ("pooling_factor", "zipf_exponent")


def read_table_set(path: Path) -> TableSet:
    """Read a table set; the suffix (.csv, .json, .yaml, .yml, each also with .gz) says how it is written.

    Raises DocumentError, naming the file and the field, or in a CSV the line and the column.
    """
    if path.exists():  # one that is missing is named as such, whatever its suffix
        _plain_path(path.name, where=str(path))
    return parse_table_set(read_text(path), name=path.name, where=str(path))


def parse_table_set(text: str, *, name: str, where: str) -> TableSet:
    """Read a table set from text; the suffix of the file's name says how it is written. Raises DocumentError."""
    path = _plain_path(name, where=where)
    if path.suffix.lower() == ".csv":
        return parse_csv(text, where=where, name=path.stem)
    raw = parse_data(text, where=where, is_json=path.suffix.lower() == ".json")
    return table_set_of_data(raw, where=where, name=path.stem)


def _plain_path(name: str, *, where: str) -> Path:
    """Return the name without the suffix of compressed files. Raises DocumentError if the rest tells no format."""
    path = Path(name.removesuffix(COMPRESSED_SUFFIX))
    if path.suffix.lower() not in SUFFIXES:
        found = f"the suffix is {path.suffix!r}" if path.suffix else "it has no suffix"
        raise DocumentError(
            where,
            [f"is not a readable table set: {found}, expected .csv, .json, .yaml or .yml; hint: rename the file"],
        )
    return path


def parse_csv(text: str, *, where: str, name: str) -> TableSet:
    """Read a table set from CSV text: a header in any order of columns, then one table per line.

    An empty cell of an optional column means that the field is not given. Empty lines are skipped.

    Raises:
        DocumentError: with one problem per fault, each naming line and column.
    """
    lines = _numbered_lines(text, where)
    if not lines:
        raise DocumentError(where, [f"is empty; hint: begin with the header {','.join(REQUIRED_COLUMNS)}"])
    (header_line, header), *rows = lines
    columns = [cell.strip() for cell in header]
    problems = [f"line {header_line}, {problem}" for problem in _header_problems(columns)]
    if problems or not rows:
        raise DocumentError(where, problems or ["has a header but no tables; hint: add one line per table"])
    problems = _row_problems(columns, rows)
    whole = [(number, cells) for number, cells in rows if len(cells) == len(columns)]
    tables = [_table(dict(zip(columns, cells, strict=True))) for _, cells in whole]
    raw = {"schema_version": TableSet.schema_name, "name": name, "tables": tables}
    try:
        found = validated(TableSet, raw, where=where)
    except DocumentError as error:
        if whole:
            of_tables = [
                each for each in error.problems if not each.startswith("tables[].name: ")
            ]  # named by line above
            problems += [_with_line(problem, [number for number, _ in whole]) for problem in of_tables]
        raise DocumentError(where, list(dict.fromkeys(problems))) from error
    if problems:
        raise DocumentError(where, problems)
    return found


def _numbered_lines(text: str, where: str) -> list[tuple[int, list[str]]]:
    """Return the cells of each line that has any, with the line's number from 1 on."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DocumentError(where, [f"line {line}: holds a NUL byte; hint: write the table set as plain text"])
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise DocumentError(where, [f"line {reader.line_num}: is not valid CSV: {error}"]) from error


def _header_problems(columns: list[str]) -> list[str]:
    known = (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)
    other = next((mark for mark in _OTHER_SEPARATORS if len(columns) == 1 and mark in columns[0]), None)
    if other is not None:
        return [f"its columns are separated by {other!r}; hint: separate them by commas"]
    problems = [
        f"column {column}: is missing; the header needs {','.join(REQUIRED_COLUMNS)}"
        for column in REQUIRED_COLUMNS
        if column not in columns
    ]
    for position, column in enumerate(columns):
        if column not in known:
            close = get_close_matches(column, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the columns are {', '.join(known)}"
            problems.append(f"column {column[:40]!r}: is not known; hint: {hint}")
        elif column in columns[:position]:
            problems.append(f"column {column}: occurs twice in the header; hint: remove one")
    return problems


def _row_problems(columns: list[str], rows: list[tuple[int, list[str]]]) -> list[str]:
    """Return the faults of the lines next to each other: ragged ones, repeated names."""
    problems = [
        f"line {number}: has {len(cells)} cells, the header has {len(columns)}; hint: is a comma missing or too many?"
        for number, cells in rows
        if len(cells) != len(columns)
    ]
    name_at = columns.index("name")
    first_line: dict[str, int] = {}
    for number, cells in rows:
        if len(cells) != len(columns):
            continue
        earlier = first_line.setdefault(cells[name_at].strip(), number)
        if earlier != number:
            name = cells[name_at].strip()
            problems.append(f"line {number}, column name: {name!r} is on line {earlier} already; hint: rename one")
    return problems


def _table(cells: dict[str, str]) -> dict[str, object]:
    """Return a table's fields as plain data; what cannot be converted stays text, for the schema to refuse."""
    fields: dict[str, object] = {}
    for column, cell in cells.items():
        text = cell.strip()
        if not text and column in OPTIONAL_COLUMNS:
            continue
        if column == "feature_names":
            fields[column] = [feature.strip() for feature in text.split(FEATURE_SEPARATOR)]
        elif column == "is_weighted":
            fields[column] = {"true": True, "false": False}.get(text.lower(), text)
        elif column in _INTEGERS or column in _NUMBERS:
            fields[column] = _number(text, int if column in _INTEGERS else float)
        else:
            fields[column] = text
    return fields


def _number(text: str, kind: type[int] | type[float]) -> int | float | str:
    """Return a number; whole ones also as `1e6` and `1000000.0`, which pandas writes for a column with a gap."""
    try:
        return kind(text)
    except ValueError:
        pass
    try:
        found = float(text)
    except ValueError:
        return text
    return int(found) if found.is_integer() else text


def _with_line(problem: str, line_numbers: list[int]) -> str:
    """Turn the path of a table's field into the line and column it was read from."""
    return re.sub(r"^tables\[(\d+)\]\.", lambda found: f"line {line_numbers[int(found[1])]}, column ", problem)

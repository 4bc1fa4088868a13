"""A log: Parquet files of one schema, with the columns that name session and time. Reads no rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.process.errors import DataError

from neuroshard_profiler.sessions.engine import FILE, ROW, Engine, identifier

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

START = "neuroshard_start"
"""Column of the first time of a row's session, by which rows are clustered."""
MOST_DIGITS = 38
"""Of decimals, in all engines."""
_PATTERN_CHARACTERS = frozenset("*?[{")


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionLog:
    """Files that are one log."""

    paths: tuple[Path, ...]
    schema: "pa.Schema"
    session: str
    """Column that is equal for the samples of one session: integers or text."""
    time: str | None
    """Column that orders the samples of a session: integers or timestamps. None: they are stored in order."""
    distinct: tuple[str, ...] = ()
    """Columns of lists that the files have once for rows next to each other that share them."""

    @property
    def title(self) -> str:
        """What errors call the log."""
        more = len(self.paths) - 1
        return f"{self.paths[0]} and {more:,} more" if more else str(self.paths[0])

    @property
    def time_column(self) -> str:
        """Column of the times, asked for where there is one."""
        assert self.time is not None, "the caller names it"
        return self.time

    @property
    def has_timestamps(self) -> bool:
        """Whether time is a timestamp; otherwise it is an integer."""
        import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read

        return bool(pa.types.is_timestamp(self.schema.field(self.time_column).type))

    def rows(self, engine: Engine) -> str:
        """Return the rows of all files as SQL, with the columns FILE and ROW, which break ties of time.

        In place of a list of ``distinct`` a row has a text that rows with the same one in the file have too.

        Raises:
            DataError: rows without session or time.
        """
        rows = engine.rows_of(self.paths)
        if self.distinct:
            rows = self._with_shared(rows)
        names = [name for name in (self.session, self.time) if name is not None]
        counts = ", ".join(f"count(*) FILTER (WHERE {identifier(name)} IS NULL)" for name in names)
        (found,) = engine.fetch(f"SELECT {counts} FROM {rows}")  # noqa: S608 - names are quoted
        for name, count in zip(names, found, strict=True):
            if count:
                raise DataError(
                    f"{self.title}: column {name!r}: is null in {count:,} rows"
                    "; hint: leave these rows out, or give them a value"
                )
        return rows

    def _with_shared(self, rows: str) -> str:
        """Return rows of files with distinct lists as SQL in which rows that share a list have equal texts."""
        from neuroshard_trainer.data.distinct_lists import SUFFIX  # noqa: PLC0415 - needs pyarrow

        others = ", ".join([*(identifier(name) for name in self.schema.names if name not in self.distinct), FILE, ROW])
        in_order = f"OVER (PARTITION BY {FILE} ORDER BY {ROW})"
        opened, shared = [], []
        for name in self.distinct:
            stored, named = identifier(name + SUFFIX), identifier(name)
            is_other = f"{stored} IS NOT NULL AND {stored} IS DISTINCT FROM lag({stored}) {in_order}"
            opened.append(f"CASE WHEN {is_other} THEN {ROW} END AS {named}")
            shared.append(f"concat({FILE}, ':', max({named}) {in_order}) AS {named}")
        opens = f"SELECT {', '.join(opened)}, {others} FROM {rows}"  # noqa: S608 - names are quoted
        return f"(SELECT {', '.join(shared)}, {others} FROM ({opens}) AS opens)"  # noqa: S608 - the same


def open_log(places: Sequence[Path], *, session: str, time: str | None) -> SessionLog:
    """Read the schemas of files, and of the ``*.parquet`` of folders in the order of their names.

    Raises:
        DataError: a file is named twice, is missing, damaged, not Parquet, or of another schema than the first; a
            column has no name, is missing, is of a type that is neither session nor time, or of one whose values the
            engines round.
    """
    paths = tuple(path for place in places for path in _files(place))
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise DataError(f"{path}: is named twice; hint: name each file once")
        seen.add(path.resolve())
    from neuroshard_trainer.data.distinct_lists import distinct_columns  # noqa: PLC0415 - needs pyarrow

    stored, schemas = zip(*map(_schemas, paths), strict=True)
    for path, schema in zip(paths, schemas, strict=True):
        _check_equal(path, schema, first=paths[0], expected=schemas[0])
    _check_columns(paths[0], schemas[0], session=session, time=time)
    for path, columns in zip(paths, stored, strict=True):
        _check_exact(path, columns)
    distinct = [set(distinct_columns(schema)) for schema in schemas]
    other = next((place for place, each in enumerate(distinct) if each != distinct[0]), None)
    if other is not None:
        raise DataError(
            f"{paths[other]}: has lists once that {paths[0]} has in every row, or the reverse; hint: cluster all files "
            "in one run"
        )
    return SessionLog(paths=paths, schema=schemas[0], session=session, time=time, distinct=tuple(sorted(distinct[0])))


def _files(place: Path) -> tuple[Path, ...]:
    if place.is_dir():
        found = tuple(sorted(path for path in place.glob("*.parquet") if not path.name.startswith(".")))
        if not found:
            raise DataError(f"{place}: holds no *.parquet file; hint: name a folder or files of Parquet")
    else:
        found = (place,)
    for path in found:
        if _PATTERN_CHARACTERS & set(str(path)):
            raise DataError(f"{path}: has one of the characters * ? [ {{ in its name; hint: rename it")
    return found


def _schemas(path: Path) -> "tuple[parquet.ParquetSchema, pa.Schema]":
    """Return the schema of a file as Parquet stores it, and as Arrow reads it."""
    import pyarrow as pa  # noqa: PLC0415 - only where Parquet is read
    from neuroshard_trainer.data.distinct_lists import schema_of  # noqa: PLC0415 - the same
    from pyarrow import parquet  # noqa: PLC0415 - the same

    if not path.is_file():
        raise DataError(f"{path}: is not a file; hint: check the path")
    try:
        metadata = parquet.read_metadata(path)
        return metadata.schema, schema_of(metadata)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is not a Parquet file ({error}); hint: sessions need named columns; convert the log to Parquet"
        ) from error


def _check_equal(path: Path, schema: "pa.Schema", *, first: Path, expected: "pa.Schema") -> None:
    found = {field.name: field.type for field in schema}
    for field in expected:
        if field.name not in found:
            raise DataError(
                f"{path}: column {field.name!r}: is missing, {first} has it"
                "; hint: write both files with the same columns"
            )
        if found[field.name] != field.type:
            raise DataError(
                f"{path}: column {field.name!r}: holds {found[field.name]}, in {first} {field.type}"
                "; hint: write both files with the same types"
            )
    extra = [name for name in schema.names if name not in expected.names]
    if extra:
        raise DataError(
            f"{path}: column {extra[0]!r}: is missing in {first}; hint: write both files with the same columns"
        )


def _check_columns(path: Path, schema: "pa.Schema", *, session: str, time: str | None) -> None:
    from neuroshard_trainer.data.session_columns import is_session, is_time  # noqa: PLC0415 - needs pyarrow

    for number, name in enumerate(schema.names, start=1):
        if not name:
            raise DataError(f"{path}: column {number} has no name; hint: name it, or leave it out")
        if name.lower() in {FILE, ROW, START}:
            raise DataError(f"{path}: column {name!r}: is a name that the engine uses; hint: rename the column")
    folded = [name.lower() for name in schema.names]
    if len(set(folded)) < len(folded):
        repeated = next(name for name in folded if folded.count(name) > 1)
        raise DataError(f"{path}: column {repeated!r}: occurs twice, upper case aside; hint: rename one")
    for name, option in ((session, "--session"), (time, "--time")):
        if name is not None and name not in schema.names:
            raise DataError(
                f"{path}: column {name!r}: is missing; hint: give {option} one of {', '.join(schema.names)}"
            )
    kind = schema.field(session).type
    if not is_session(kind):
        raise DataError(f"{path}: column {session!r}: holds {kind}; hint: a session is an integer or a text")
    if time is not None and not is_time(kind := schema.field(time).type):
        raise DataError(f"{path}: column {time!r}: holds {kind}; hint: time is an integer or a timestamp")


def _check_exact(path: Path, schema: "parquet.ParquetSchema") -> None:
    """Refuse columns whose values the engines round while they read them."""
    for index in range(len(schema)):
        column = schema.column(index)
        if column.physical_type == "INT96":
            raise DataError(
                f"{path}: column {column.path!r}: holds timestamps of 96 bits, whose nanoseconds would be lost"
                "; hint: write them as 64-bit timestamps"
            )
        if column.logical_type.type == "DECIMAL" and column.precision > MOST_DIGITS:
            raise DataError(
                f"{path}: column {column.path!r}: holds decimals of {column.precision} digits, and the engine keeps "
                f"{MOST_DIGITS}; hint: write them with at most as many"
            )

"""DuckDB under a memory limit, with a folder to spill to, and its failures as sentences."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from neuroshard_api.process.errors import DataError, MissingPackageError, StorageError
from neuroshard_api.process.missing_package import missing_package

from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.sessions.engine import BATCH_ROWS, FILE, identifier, literal
from neuroshard_profiler.sessions.writer import write_clustered

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MIB = 2**20
THREADS = 2
"""Each thread sorts in buffers of its own, so that more threads need more memory."""


@dataclass(frozen=True, slots=True)
class DuckDb:
    """An open database without tables."""

    connection: "duckdb.DuckDBPyConnection"
    num_writers: int = 1
    empty_list: str = "[]"
    wide_integer: str = "HUGEINT"

    def rows_of(self, paths: Sequence[Path]) -> str:
        """Return the rows of Parquet files as SQL."""
        files = ", ".join(literal(str(path)) for path in paths)
        return f"read_parquet([{files}], filename={literal(FILE)}, file_row_number=true, hive_partitioning=false)"

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.connection.sql(query).fetchall()

    def write(self, path: Path, query: str, *, order: Sequence[str], schema: "pa.Schema", row_group_rows: int) -> None:
        """Sort the rows of a query, with what exceeds memory on disk, and write them."""
        names = ", ".join(map(identifier, schema.names))
        keys = ", ".join(map(identifier, order))
        rows = self.connection.sql(f"SELECT {names} FROM ({query}) ORDER BY {keys}")  # noqa: S608 - names are quoted
        write_clustered(path, rows.to_arrow_reader(BATCH_ROWS), schema, row_group_rows=row_group_rows)

    def microseconds(self, column: str, *, has_zone: bool) -> str:
        """Return the microseconds of a column as SQL."""
        return f"epoch_us(CAST({column} AS {'TIMESTAMPTZ' if has_zone else 'TIMESTAMP'}))"

    def timestamp(self, moment: datetime, *, has_zone: bool, has_nanoseconds: bool) -> str:
        """Return a moment as SQL. Nanoseconds of a zone are compared with no other timestamps of a zone."""
        if has_zone:
            return f"CAST('{moment.isoformat()}' AS TIMESTAMPTZ{'_NS' if has_nanoseconds else ''})"
        return f"CAST('{moment.replace(tzinfo=None).isoformat(sep=' ')}' AS TIMESTAMP)"

    def row_hash(self, columns: Sequence[str]) -> str:
        """Return the hash of columns as SQL."""
        return f"hash({', '.join(columns)})"


@contextmanager
def duckdb_engine(*, memory_mib: int, spill_to: Path | None, log: str) -> Iterator[DuckDb]:
    """Open an empty database that loads no extensions and reaches no network; see ``engine`` for errors.

    Args:
        memory_mib: limit of the database's memory; what does not fit is spilled.
        spill_to: folder in which a folder for spilled data is made and removed. If unset: in the system's.
        log: what errors call the files that are read.
    """
    try:
        import duckdb  # noqa: PLC0415 - an optional package
    except ModuleNotFoundError as error:
        raise MissingPackageError(missing_package(error, extra="sessions")) from error

    disk = str(spill_to or gettempdir())
    try:
        with TemporaryDirectory(prefix=".spill-", dir=spill_to) as folder, duckdb.connect(":memory:") as connection:
            for name, value in {
                "memory_limit": f"{memory_mib * MIB}B",
                "temp_directory": folder,
                "threads": THREADS,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }.items():
                connection.execute(f"SET {name} = {value!r}")
            yield DuckDb(connection)
    except duckdb.Error as error:
        problem = str(error)
        expected = isinstance(error, (duckdb.IOException, duckdb.InvalidInputException, duckdb.OutOfMemoryException))
        if not expected and type(error) is not duckdb.Error:  # what a damaged page raises has no class of its own
            raise
        raise _sentence(problem, memory_mib=memory_mib, disk=disk, log=log) from error
    except OSError as error:  # pyarrow raises it with the engine's text where the engine fails while rows are fetched
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageError(f"{error.filename or disk}: {error.strerror}; hint: free space on that disk") from error
        if error.errno is not None:
            raise
        raise _sentence(str(error), memory_mib=memory_mib, disk=disk, log=log) from error


def _sentence(problem: str, *, memory_mib: int, disk: str, log: str) -> DataError | SettingsError | StorageError:
    if any(sign in problem for sign in ("temp_directory", "No space left", "Disk quota")):
        return StorageError(f"{disk}: has no space for spilled data; hint: free space on that disk")
    if "Out of Memory" in problem:
        return SettingsError(
            f"--memory-mib: {memory_mib} MiB are too little for {log}; hint: give --memory-mib {2 * memory_mib}"
        )
    return DataError(f"{log}: cannot be read ({problem.splitlines()[0]}); hint: write the damaged file again")

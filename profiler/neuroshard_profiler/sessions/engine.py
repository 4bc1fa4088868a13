"""DuckDB under a memory limit, with a folder to spill to, and its failures as sentences. Knows nothing of sessions."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING

from neuroshard_api.missing_package import missing_package

from neuroshard_profiler.errors import DataError, MissingPackageError, SettingsError, StorageError

if TYPE_CHECKING:
    import duckdb

MIB = 2**20
THREADS = 2
"""Each thread sorts in buffers of its own, so that more threads need more memory."""


@contextmanager
def engine(*, memory_mib: int, spill_to: Path | None, log: str) -> Iterator["duckdb.DuckDBPyConnection"]:
    """Open an empty database that loads no extensions and reaches no network.

    Args:
        memory_mib: limit of the database's memory; what does not fit is spilled.
        spill_to: folder in which a folder for spilled data is made and removed. If unset: in the system's.
        log: what errors call the files that are read.

    Raises:
        DataError: a file cannot be read.
        MissingPackageError: DuckDB is not installed.
        SettingsError: the memory limit is too low.
        StorageError: the disk is full.
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
            yield connection
    except duckdb.Error as error:
        problem = str(error)
        expected = isinstance(error, (duckdb.IOException, duckdb.InvalidInputException, duckdb.OutOfMemoryException))
        if not expected and type(error) is not duckdb.Error:  # what a damaged page raises has no class of its own
            raise
        raise _sentence(problem, memory_mib=memory_mib, disk=disk, log=log) from error
    except OSError as error:  # pyarrow raises it with the engine's text where the engine fails while rows are fetched
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageError(f"{error.filename or disk}: {error.strerror}\nhint: free space on that disk") from error
        if error.errno is not None:
            raise
        raise _sentence(str(error), memory_mib=memory_mib, disk=disk, log=log) from error


def _sentence(problem: str, *, memory_mib: int, disk: str, log: str) -> DataError | SettingsError | StorageError:
    if any(sign in problem for sign in ("temp_directory", "No space left", "Disk quota")):
        return StorageError(f"{disk}: has no space for spilled data\nhint: free space on that disk")
    if "Out of Memory" in problem:
        return SettingsError(
            f"--memory-mib: {memory_mib} MiB are too little for {log}\nhint: give --memory-mib {2 * memory_mib}"
        )
    return DataError(f"{log}: cannot be read ({problem.splitlines()[0]})\nhint: write the damaged file again")


def identifier(name: str) -> str:
    """Return a column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("'", "''") + "'"

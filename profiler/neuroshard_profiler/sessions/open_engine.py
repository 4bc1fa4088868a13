"""Opens the engine that settings name. One of the two is imported."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from neuroshard_profiler.sessions.engine import DEFAULT_MEMORY_MIB, Engine, EngineKind, EngineSettings


@contextmanager
def engine(settings: EngineSettings, *, spill_to: Path | None, log: str) -> Iterator[Engine]:
    """Open an engine.

    Args:
        settings: which one.
        spill_to: folder in which DuckDB makes and removes a folder for spilled data. If unset: in the system's.
        log: what errors call the files that are read.

    Raises:
        DataError: a file cannot be read.
        MissingPackageError: the engine is not installed, or Spark without Java.
        SettingsError: the memory limit is too low, or is one that the engine does not take.
        StorageError: the disk is full.
    """
    opened: AbstractContextManager[Engine]
    if settings.kind is EngineKind.SPARK:
        from neuroshard_profiler.sessions.spark_engine import spark  # noqa: PLC0415 - one engine of two is needed

        opened = spark(memory_mib=settings.memory_mib, log=log)
    else:
        from neuroshard_profiler.sessions.duckdb_engine import duckdb_engine  # noqa: PLC0415 - the same

        opened = duckdb_engine(memory_mib=settings.memory_mib or DEFAULT_MEMORY_MIB, spill_to=spill_to, log=log)
    with opened as found:
        yield found

"""Spark, on this machine or on the cluster that its configuration names, and its failures as sentences.

Executors read the log and write clustered files themselves, so all of them need the log and the folder under the paths
that the driver has, and this package. Memory is Spark's to limit.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuroshard_api.process.errors import DataError, ExpectedError, MissingPackageError, StorageError
from neuroshard_api.process.missing_package import missing_package

from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.sessions.engine import BATCH_ROWS, FILE, ROW
from neuroshard_profiler.sessions.writer import write_clustered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CONFIGURATION = ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
"""Variables of which one names a cluster's configuration. Without them Spark runs in this process's JVM alone."""
LOCAL = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
DIALECT = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.legacy.allowHashOnMapType": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
}
"""Settings that the SQL of this package and its promises need, whatever the cluster's are."""


@dataclass(frozen=True, slots=True)
class Spark:
    """A session without tables."""

    session: "SparkSession"
    log: str
    """What errors call the files that are read."""
    empty_list: str = "array()"
    wide_integer: str = "DECIMAL(38, 0)"
    _views: Iterator[int] = field(default_factory=count)

    @property
    def num_writers(self) -> int:
        """Tasks that run at a time: cores of all executors, or ``spark.default.parallelism``."""
        return int(self.session.sparkContext.defaultParallelism)

    def rows_of(self, paths: Sequence[Path]) -> str:
        """Return the name of a view of the rows of Parquet files.

        Raises:
            DataError: a name is one of those that Spark skips.
        """
        for path in paths:
            if path.name.startswith(("_", ".")):
                raise DataError(f"{path}: begins with {path.name[0]!r}, and Spark skips such files; hint: rename it")
        view = f"neuroshard_rows_{next(self._views)}"
        files = self.session.read.parquet(*(f"file://{path.resolve()}" for path in paths))
        added = (f"_metadata.file_path AS {FILE}", f"_metadata.row_index AS {ROW}")
        files.selectExpr("*", *added).createOrReplaceTempView(view)
        return view

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [tuple(row) for row in self.session.sql(query).collect()]

    def write(self, path: Path, query: str, *, order: Sequence[str], schema: "pa.Schema", row_group_rows: int) -> None:
        """Have one task sort the rows of a query, with what exceeds memory on its disk, and write them."""
        rows = self.session.sql(query).repartition(1).sortWithinPartitions(*map(_column, order))
        places = [f"column{place}" for place in range(len(schema.names))]  # mapInArrow takes no dots in names
        written = (
            rows.select(*map(_column, schema.names))
            .toDF(*places)
            .mapInArrow(partial(_written, path=path, schema=schema, row_group_rows=row_group_rows), "path string")
        )
        assert len(written.collect()) == 1, "one task writes a file"

    def microseconds(self, column: str, *, has_zone: bool) -> str:
        """Return the microseconds of a column as SQL; times without a zone are taken as those of the session, UTC."""
        return f"unix_micros({column if has_zone else f'CAST({column} AS TIMESTAMP)'})"

    def timestamp(self, moment: datetime, *, has_zone: bool, has_nanoseconds: bool) -> str:
        """Return a moment as SQL. Spark reads no nanoseconds."""
        assert not has_nanoseconds
        if has_zone:
            return f"CAST('{moment.isoformat()}' AS TIMESTAMP)"
        return f"CAST('{moment.replace(tzinfo=None).isoformat(sep=' ')}' AS TIMESTAMP_NTZ)"

    def row_hash(self, columns: Sequence[str]) -> str:
        """Return the hash of columns as SQL; a null leaves the hash as it is, and counts by its place."""
        return f"xxhash64({', '.join(f'{name}, {name} IS NULL' for name in columns)})"


@contextmanager
def spark(*, memory_mib: int | None, log: str) -> Iterator[Spark]:
    """Open a session of Spark: of the context that runs in this process, or of one that ends with the block.

    Args:
        memory_mib: must be unset.
        log: what errors call the files that are read.

    Raises:
        DataError: a file cannot be read.
        MissingPackageError: Spark is not installed, or Java 17 or later.
        SettingsError: a memory limit was given, or Spark's own is too low.
        StorageError: a disk is full.
    """
    if memory_mib is not None:
        raise SettingsError(
            "--memory-mib: limits DuckDB's memory, and Spark was asked for"
            "; hint: set spark.driver.memory and spark.executor.memory in spark-defaults.conf of SPARK_CONF_DIR"
        )
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - an optional package
        from pyspark.errors import PySparkException  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        raise MissingPackageError(missing_package(error, extra="spark")) from error

    with _context() as base:
        try:
            session = base.newSession()
            for name, value in DIALECT.items():
                session.conf.set(name, value)
            if "PYSPARK_PYTHON" not in os.environ:
                session.sparkContext.pythonExec = sys.executable
            yield Spark(session, log)
        except (PySparkException, Py4JError) as error:
            found = _sentence(str(error), log=log)
            if found is None:
                raise
            raise found from error


@contextmanager
def _context() -> Iterator["SparkSession"]:
    """Yield the session that runs in this process, or one that ends with the block. Raises MissingPackageError."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - an optional package
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the same

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    check_java()
    builder = SparkSession.Builder().appName("neuroshard")
    for name, value in ({} if any(each in os.environ for each in CONFIGURATION) else LOCAL).items():
        builder.config(name, value)
    try:
        started = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise MissingPackageError(f"--engine spark: Spark did not start ({error}); hint: {JAVA_HINT}") from error
    try:
        yield started
    finally:
        started.stop()


JAVA_HINT = "install Java 17 or later (Debian: apt install openjdk-17-jre-headless), or name it in JAVA_HOME"


def check_java() -> None:
    """Raise MissingPackageError where Spark would find no Java."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=None if home is None else f"{home}/bin") is None:
        raise MissingPackageError(f"--engine spark: needs Java, which was not found; hint: {JAVA_HINT}")


def _written(
    batches: Iterator["pa.RecordBatch"], *, path: Path, schema: "pa.Schema", row_group_rows: int
) -> Iterator["pa.RecordBatch"]:
    """Write a partition, in an executor; an attempt that is repeated, or run twice, writes a file of its own."""
    import pyarrow as pa  # noqa: PLC0415 - only where Parquet is written
    from pyspark import TaskContext  # noqa: PLC0415 - an optional package

    context = TaskContext.get()
    assert context is not None
    attempt = path.with_name(f"{path.name}.{context.taskAttemptId()}")
    named = (batch.rename_columns(schema.names) for batch in batches)
    write_clustered(attempt, named, schema, row_group_rows=row_group_rows)
    attempt.replace(path)
    yield pa.record_batch({"path": [str(path)]})


def _column(name: str) -> str:
    """Return a column's name as Spark's functions take it."""
    return "`" + name.replace("`", "``") + "`"


def _sentence(problem: str, *, log: str) -> ExpectedError | None:
    """Return a failure as a sentence; none for one that is a fault of this package."""
    if "No space left" in problem or "Disk quota" in problem:
        return StorageError(
            "a disk of Spark has no space left for spilled data or clustered files"
            "; hint: free space there; spark.local.dir names the folder of spilled data"
        )
    if "OutOfMemoryError" in problem:
        return SettingsError(
            f"Spark's memory is too little for {log}"
            "; hint: set a higher spark.driver.memory, or spark.executor.memory on a cluster"
        )
    if "TIMESTAMP(NANOS" in problem:
        return DataError(
            f"{log}: holds timestamps of nanoseconds, which Spark does not read"
            "; hint: write microseconds, or take --engine duckdb"
        )
    if "FAILED_READ_FILE" in problem:
        return DataError(f"{log}: cannot be read ({problem.splitlines()[0]}); hint: write the damaged file again")
    return None

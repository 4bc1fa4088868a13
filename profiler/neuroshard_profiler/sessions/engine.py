"""Engines that sort and count logs larger than memory: DuckDB, or Spark also on a cluster. They know no sessions.

The SQL of this package runs on both. Where their words differ, an engine gives its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "neuroshard_file"
ROW = "file_row_number"
"""Columns that an engine adds to the rows of files: path of the file, and number of the row in it."""
BATCH_ROWS = 2048
"""Rows that an engine hands to the writer of files at a time."""


class EngineKind(StrEnum):
    """Engines by the names of the option ``--engine``."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class Engine(Protocol):
    """Runs SQL over Parquet files in limited memory."""

    @property
    def num_writers(self) -> int:
        """Files that it writes at a time, if asked from as many threads."""

    def rows_of(self, paths: Sequence[Path]) -> str:
        """Return the rows of Parquet files as SQL, with the columns FILE and ROW."""

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return the few rows of a query."""

    def write(self, path: Path, query: str, *, order: Sequence[str], schema: "pa.Schema", row_group_rows: int) -> None:
        """Sort the rows of a query and write them as one clustered file, to disk before this returns.

        Args:
            path: the file, which is replaced.
            query: of the columns of the schema and of ``order``.
            order: columns that order the rows.
            schema: of the file.
            row_group_rows: maximum rows of a row group.
        """

    @property
    def empty_list(self) -> str:
        """A list without elements as SQL."""

    @property
    def wide_integer(self) -> str:
        """A type of integers with more than 64 bits."""

    def microseconds(self, column: str, *, has_zone: bool) -> str:
        """Return the microseconds since 1970 in UTC of a quoted column of timestamps as SQL."""

    def timestamp(self, moment: datetime, *, has_zone: bool, has_nanoseconds: bool) -> str:
        """Return a moment in UTC as SQL, of the type of such a column."""

    def row_hash(self, columns: Sequence[str]) -> str:
        """Return the hash of a row's quoted columns as SQL: an integer of 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """Which engine, and how much memory."""

    kind: EngineKind = EngineKind.DUCKDB
    memory_mib: int | None = None
    """Limit of DuckDB's memory. If unset: DEFAULT_MEMORY_MIB. Spark has settings for its own."""


DEFAULT_MEMORY_MIB = 512


def identifier(name: str) -> str:
    """Return a column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as SQL."""
    return "'" + text.replace("'", "''") + "'"

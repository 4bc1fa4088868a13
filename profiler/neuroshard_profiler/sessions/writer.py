"""Parquet files of clustered samples: list columns plain, so that zstd finds repeated lists. Sorts nothing.

Codes of a dictionary hide repeated lists from the compressor; columns of single values keep their dictionary, which
pyarrow leaves for plain values where it grows too large.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 64 * 2**20
"""Row groups of wide rows end here, so that the memory of writing has a limit."""
ZSTD_LEVEL = 3


def write_clustered(
    path: Path, batches: Iterable["pa.RecordBatch"], schema: "pa.Schema", *, row_group_rows: int
) -> None:
    """Write batches as row groups, to disk before this returns.

    Args:
        path: the file, which is replaced.
        batches: of small numbers of rows, whose columns are those of the schema, of types that cast to it.
        schema: of the file.
        row_group_rows: maximum rows of a row group.

    Raises:
        OSError: it could not be written.
    """
    import pyarrow as pa  # noqa: PLC0415 - only where Parquet is written
    from pyarrow import parquet  # noqa: PLC0415 - the same

    single = [field.name for field in schema if not pa.types.is_nested(field.type)]
    with path.open("wb") as file:
        with parquet.ParquetWriter(
            file, schema, use_dictionary=single, compression="zstd", compression_level=ZSTD_LEVEL
        ) as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in batches:
                left = batch
                while left.num_rows:
                    room = row_group_rows - sum(each.num_rows for each in waiting)
                    waiting.append(left.slice(0, room))
                    left = left.slice(room)
                    rows = sum(each.num_rows for each in waiting)
                    if rows == row_group_rows or sum(each.nbytes for each in waiting) >= ROW_GROUP_BYTES:
                        writer.write_table(pa.Table.from_batches(waiting).cast(schema), row_group_size=rows)
                        waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting).cast(schema), row_group_size=row_group_rows)
        file.flush()
        os.fsync(file.fileno())

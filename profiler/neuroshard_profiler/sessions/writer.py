"""Parquet files of clustered samples: list columns plain, so that zstd finds repeated lists. Sorts nothing.

Lists of ids may then be kept once for the samples next to each other that share them. Integers are then packed as
differences, which mostly takes less room and half the time to decode, and floats are plain; a trial tells where.

Codes of a dictionary hide repeated lists from the compressor; other columns of single values keep their dictionary,
which pyarrow leaves for plain values where it grows too large.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from neuroshard_api.process.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

ROW_GROUP_BYTES = 64 * 2**20
"""Row groups of wide rows end here, so that the memory of writing has a limit."""
ZSTD_LEVEL = 3
DIFFERENCES, PLAIN = "DELTA_BINARY_PACKED", "PLAIN"
"""Parquet's encodings of integers by their differences, in as many bits as those need, and of values as they are.
BYTE_STREAM_SPLIT of floats, which newer readers alone know, gains little more."""
PACKED_SIZE = 1.25
"""Bytes over those of plain lists, up to which lists are packed: where they share parts, which zstd finds, plain ones
are much smaller."""


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

    with path.open("wb") as file:
        with _writer(file, schema) as writer:
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


def keep_lists_once(clustered: Path, path: Path) -> bool:
    """Write a file's lists of ids once for the samples next to each other that share them, to disk before this returns.

    What was written is read again and compared, row group by row group. Return False, with nothing written, where the
    file has no lists of ids.

    Args:
        clustered: the file with all lists.
        path: of the new file, which has its row groups.

    Raises:
        OSError: it could not be written.
        DataError: it was read otherwise than it was written.
    """
    from neuroshard_trainer.data.distinct_lists import (  # noqa: PLC0415 - needs pyarrow
        can_be_distinct,
        stored_schema,
        with_repeats,
        without_repeats,
    )
    from pyarrow import parquet  # noqa: PLC0415 - only where Parquet is written

    with parquet.ParquetFile(clustered) as source:
        names = [field.name for field in source.schema_arrow if can_be_distinct(field.type)]
        if not names:
            return False
        schema = stored_schema(source.schema_arrow, names)

        def stored(group: int) -> "pa.Table":
            return without_repeats(source.read_row_group(group), names).cast(schema)

        packed = _packed(stored(0)) if source.num_row_groups else {}
        with path.open("wb") as file:
            with _writer(file, schema, packed) as writer:
                for group in range(source.num_row_groups):
                    rows = stored(group)
                    writer.write_table(rows, row_group_size=len(rows))
            file.flush()
            os.fsync(file.fileno())
        with parquet.ParquetFile(path) as written:
            for group in range(source.num_row_groups):
                before, after = source.read_row_group(group), written.read_row_group(group)
                if not _are_equal(with_repeats(after, names), with_repeats(without_repeats(before, names), names)):
                    raise DataError(f"{path}: row group {group} is not what was written; hint: check the disk")
    return True


def _are_equal(one: "pa.Table", other: "pa.Table") -> bool:
    """Return whether the columns of two tables hold the same; NaN equals NaN, which Arrow does not say."""
    return all(
        left.equals(right) or repr(left.to_pylist()) == repr(right.to_pylist())
        for left, right in zip(one.columns, other.columns, strict=True)
    )


def _packed(rows: "pa.Table") -> Mapping[str, str]:
    """Return the encodings of columns of numbers that are not the usual ones, by Parquet's paths of their values."""
    tried = {field.name: encoding for field in rows.schema if (encoding := _encoding(field.type)) is not None}
    numbers = rows.select(list(tried))
    usual = _bytes_by_path(numbers, {})
    encodings = dict(zip(usual, tried.values(), strict=True))
    sizes = _bytes_by_path(numbers, encodings)
    limits = {path: size * (1.0 if path in tried else PACKED_SIZE) for path, size in usual.items()}
    return {path: encoding for path, encoding in encodings.items() if sizes[path] <= limits[path]}


def _encoding(kind: "pa.DataType") -> str | None:
    """Return the encoding of a type that is to be tried. None: the usual one alone."""
    import pyarrow as pa  # noqa: PLC0415 - only where Parquet is written

    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
    if pa.types.is_integer(inner) or pa.types.is_timestamp(inner):
        return DIFFERENCES
    return PLAIN if pa.types.is_floating(kind) else None


def _bytes_by_path(rows: "pa.Table", encodings: Mapping[str, str]) -> Mapping[str, int]:
    """Return the compressed bytes of each leaf of the columns, written to memory as one row group."""
    import pyarrow as pa  # noqa: PLC0415 - only where Parquet is written
    from pyarrow import parquet  # noqa: PLC0415 - the same

    sink = pa.BufferOutputStream()
    with _writer(sink, rows.schema, encodings) as writer:
        writer.write_table(rows, row_group_size=len(rows))
    group = parquet.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema: column.total_compressed_size for column in columns}


def _writer(
    file: "BinaryIO | pa.NativeFile", schema: "pa.Schema", encodings: Mapping[str, str] | None = None
) -> "parquet.ParquetWriter":
    """Return a writer; ``encodings`` are other ones than the usual, by the paths of values."""
    import pyarrow as pa  # noqa: PLC0415 - only where Parquet is written
    from pyarrow import parquet  # noqa: PLC0415 - the same

    encodings = encodings or {}
    single = [field.name for field in schema if not pa.types.is_nested(field.type) and field.name not in encodings]
    return parquet.ParquetWriter(
        file,
        schema,
        use_dictionary=single,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        column_encoding=dict(encodings) or None,
    )

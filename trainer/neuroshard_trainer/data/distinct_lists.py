"""Parquet files with a list once for the samples next to each other that share it, as `cluster-sessions` writes them.

The lists of ``history`` are in a column ``history.distinct``: a list where it differs from that of the row before and
at the start of a row group, and null where it repeats. A row group where that leaves out fewer than LEAST_SAVED ids per
row has the lists of all rows. The name differs, so that no reader takes a repeat for an empty list; an empty list is an
empty list. The metadata of the file names the columns. In pandas, ``frame["history.distinct"].ffill()`` are the lists
of all rows.
"""

import json
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from neuroshard_trainer.data.id_columns import holds_ids, whole
from neuroshard_trainer.data.repeats import repeated
from neuroshard_trainer.data.samples import Jagged

KEY = b"neuroshard.distinct_lists"
"""Of the metadata of a file: a JSON list of the names of columns without SUFFIX."""
SUFFIX = ".distinct"
LEAST_SAVED = 2.0
"""Ids per row. Below it, a reader takes longer to find each row's list than to decode and copy it:
``benchmarks/session_reading.py``, whose MovieLens has lists of one id that repeat."""


def distinct_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names, without SUFFIX, of the columns of a file that have distinct lists."""
    stored = (schema.metadata or {}).get(KEY)
    return () if stored is None else tuple(json.loads(stored))


def schema_of(metadata: pq.FileMetaData) -> pa.Schema:
    """Return the schema of a file's rows, in which columns of distinct lists have the names of their features."""
    schema = metadata.schema.to_arrow_schema()
    names = {f"{name}{SUFFIX}": name for name in distinct_columns(schema)}
    return pa.schema([field.with_name(names.get(field.name, field.name)) for field in schema], schema.metadata)


def stored_schema(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Return the schema of a file whose columns with these names have distinct lists."""
    kept = set(names)
    fields = [field.with_name(f"{field.name}{SUFFIX}") if field.name in kept else field for field in schema]
    metadata = dict(schema.metadata or {}) | ({KEY: json.dumps(sorted(kept)).encode()} if kept else {})
    return pa.schema(fields, metadata)


def can_be_distinct(kind: pa.DataType) -> bool:
    """Return whether a column of a type is of lists that are kept once: of ids."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and holds_ids(kind)


def without_repeats(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return the rows of a row group with null in place of each list that equals that of the row before.

    A column where that leaves out fewer than LEAST_SAVED ids per row keeps them.

    Args:
        table: with all lists; a null list is taken as an empty one.
        names: columns of lists, whose names get SUFFIX.
    """
    for name in names:
        place = table.schema.get_field_index(name)
        column = whole(table.column(place))
        column = pc.if_else(pc.is_valid(column), column, pa.scalar([], column.type)) if column.null_count else column
        repeats = _repeats(column)
        if pc.list_value_length(column).to_numpy()[repeats].sum() >= LEAST_SAVED * len(column):
            column = pc.if_else(pa.array(~repeats), column, pa.scalar(None, column.type))
        table = table.set_column(place, f"{name}{SUFFIX}", column)
    return table


def with_repeats(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return the rows of a row group with all lists, in columns whose names have no SUFFIX."""
    for name in names:
        place = table.schema.get_field_index(f"{name}{SUFFIX}")
        column = whole(table.column(place))
        of_row = np.cumsum(column.is_valid().to_numpy(zero_copy_only=False)) - 1
        table = table.set_column(place, name, column.drop_null().take(pa.array(of_row)))
    return table


def _repeats(column: pa.Array) -> NDArray[np.bool_]:
    """Return [rows] whether a list equals that of the row before, elements that are null among them."""
    codes = column.flatten().dictionary_encode(null_encoding="encode").indices.to_numpy()
    lengths = pc.list_value_length(column).to_numpy()
    return repeated([Jagged.of_lengths(codes.astype(np.int64), lengths)])

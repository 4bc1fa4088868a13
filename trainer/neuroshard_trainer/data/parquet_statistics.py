"""The footers of Parquet files: types, nulls, smallest and largest values of columns. Reads no rows."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from neuroshard_trainer.data.id_columns import id_type, is_list, is_text


def leaves_of(schema: pa.Schema) -> dict[str, int]:
    """Return the number of the first stored column of each field; a struct has several."""

    def count(kind: pa.DataType) -> int:
        if pa.types.is_struct(kind):
            return sum(count(kind.field(index).type) for index in range(kind.num_fields))
        if pa.types.is_map(kind):
            return count(kind.key_type) + count(kind.item_type)
        return count(kind.value_type) if is_list(kind) else 1

    counts = [count(field.type) for field in schema]
    return {name: sum(counts[:index]) for index, name in enumerate(schema.names)}


def text_columns(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """Return the paths of those columns that hold texts, which are read as dictionaries: each text is hashed once."""
    schema = metadata.schema.to_arrow_schema()
    leaves = leaves_of(schema)
    return [metadata.schema.column(leaves[name]).path for name in names if is_text(id_type(schema.field(name).type))]


def groups_with_nulls(metadata: pq.FileMetaData, leaf: int) -> Iterator[tuple[int, int]]:
    """Yield the row groups in which a stored column has nulls, and how many, as far as the file tells."""
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(leaf).statistics
        if statistics is not None and statistics.has_null_count and statistics.null_count:
            yield group, int(statistics.null_count)


def groups_outside(metadata: pq.FileMetaData, leaf: int, num_rows: int) -> Iterator[int]:
    """Yield the row groups in which a stored column has integers that are no rows, as far as the file tells."""
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(leaf).statistics
        if statistics is not None and statistics.has_min_max and (statistics.min < 0 or statistics.max >= num_rows):
            yield group

"""Columns of ids as Arrow has them: integers or texts, one or a list per sample, perhaps encoded by a dictionary.

Texts are hashed from Arrow's buffers, those with a dictionary once for each distinct one.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from neuroshard_api.documents.tables import IdRule
from numpy.typing import NDArray

from neuroshard_trainer.data.id_rules import Words, rows_of_hashes, rows_of_integers
from neuroshard_trainer.data.samples import IndexArray, Jagged
from neuroshard_trainer.data.text_hashes import text_array_hashes

EXPECTED_IDS = "an integer, a text, or a list of them"


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of a type are lists."""
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        )
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts, or bytes, which Parquet writers without types store texts as."""
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
        )
    )


def id_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the single ids of a column, without a list and a dictionary around it."""
    inner = kind.value_type if is_list(kind) else kind
    return inner.value_type if pa.types.is_dictionary(inner) else inner


def holds_ids(kind: pa.DataType) -> bool:
    """Return whether a column of a type can be looked up."""
    return bool(pa.types.is_integer(id_type(kind))) or is_text(id_type(kind))


@dataclass(frozen=True, kw_only=True, slots=True)
class IdColumn:
    """The ids of a column, sample after sample, and how many each sample has. A null looks nothing up."""

    values: pa.Array
    """Integers, texts, or either encoded by a dictionary; without nulls."""
    lengths: NDArray[np.int64]
    """[samples]"""

    @classmethod
    def of(cls, column: "pa.ChunkedArray | pa.Array") -> "IdColumn":
        """Return the ids of a column of which ``holds_ids`` is true."""
        array = whole(column)
        if not is_list(array.type):
            array = _without_views(array)
            if not array.null_count:
                return cls(values=array, lengths=np.ones(len(array), dtype=np.int64))
            present = array.is_valid().to_numpy(zero_copy_only=False)
            return cls(values=array.drop_null(), lengths=present.astype(np.int64))
        lengths = _lengths(array)
        flat = _without_views(array.flatten())  # without what nulls may hide
        if flat.null_count:
            held = flat.is_valid().to_numpy(zero_copy_only=False)
            owners = np.repeat(np.arange(len(lengths)), lengths)
            lengths = np.bincount(owners[held], minlength=len(lengths))
            flat = flat.drop_null()
        return cls(values=flat, lengths=lengths)

    def rows(self, rule: IdRule, num_rows: int) -> Jagged:
        """Return the rows that the ids look up; texts have the rule Hash alone."""
        return Jagged.of_lengths(_rows(self.values, rule, num_rows), self.lengths)

    def identities(self) -> IndexArray:
        """Return one integer for each id, equal for equal ids: an integer itself, or the hash of a text."""
        if is_text(id_type(self.values.type)):
            return text_hashes(self.values).view(np.int64)
        numbers: NDArray[np.integer] = _integers(self.values)
        return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers.astype(np.int64)


def whole(column: "pa.ChunkedArray | pa.Array") -> pa.Array:
    """Return a column in one piece."""
    if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1:
        return column.chunk(0)  # combine_chunks would copy it
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.array([], type=column.type) if isinstance(array, pa.ChunkedArray) else array  # of no chunk at all


def _lengths(lists: pa.Array) -> NDArray[np.int64]:
    """Return the elements of each list; a null has none."""
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        counted: NDArray[np.int64] = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
        return counted
    lengths: NDArray[np.int64] = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    if lists.null_count:
        lengths[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths


def _without_views(values: pa.Array) -> pa.Array:
    """Return texts in one buffer, which more of Arrow's functions take."""
    is_view = pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type)
    return values.cast(pa.large_binary()) if is_view else values


def _rows(values: pa.Array, rule: IdRule, num_rows: int) -> IndexArray:
    if is_text(id_type(values.type)):
        return rows_of_hashes(text_hashes(values), num_rows)
    return rows_of_integers(_integers(values), rule, num_rows)


def text_hashes(values: pa.Array) -> Words:
    """Return xxh64 of each text of an array without nulls, of one with a dictionary once for each distinct text."""
    if not pa.types.is_dictionary(values.type):
        return text_array_hashes(values)
    hashes: Words = text_array_hashes(values.dictionary)[values.indices.to_numpy()]
    return hashes


def _integers(values: pa.Array) -> NDArray[np.integer]:
    if pa.types.is_dictionary(values.type):
        found: NDArray[np.integer] = values.dictionary.to_numpy()[values.indices.to_numpy()]
    else:
        found = values.to_numpy()
    return found

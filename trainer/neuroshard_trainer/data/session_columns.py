"""Columns that name the sessions of samples and order them, as Arrow has them."""

from collections.abc import Callable, Mapping
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.repeats import changed_list, first_change
from neuroshard_trainer.data.samples import IndexArray, Jagged


def is_session(kind: pa.DataType) -> bool:
    """Return whether values of a type can name sessions."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(kind) for is_kind in is_kinds)


def is_time(kind: pa.DataType) -> bool:
    """Return whether values of a type can order samples."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def session_ids(column: pa.ChunkedArray) -> IndexArray:
    """Return [rows] sessions as 64-bit integers: integers as they are, texts by their hash (BLAKE2b)."""
    if pa.types.is_dictionary(column.type) and pa.types.is_integer(column.type.value_type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        return _whole_numbers(column)
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # of no chunk at all
        return np.zeros(0, dtype=np.int64)
    encoded = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    hashes = [
        int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
        for text in encoded.dictionary.to_pylist()
    ]
    ids: IndexArray = np.array(hashes, dtype=np.int64)[encoded.indices.to_numpy()]
    return ids


def require_constant(
    lookups: Mapping[str, Jagged], sessions: pa.ChunkedArray, *, place: Callable[[int], str], file: str
) -> None:
    """Do nothing if the lists of a block do not change within its sessions. Raises DataError with both places.

    Args:
        lookups: lists of the features that are constant.
        sessions: column of the block.
        place: of a row, for people.
        file: with which the places begin.
    """
    found = first_change(lookups, session_ids(sessions))
    if found is not None:
        raise DataError(
            changed_list(
                found.feature,
                sessions[found.row].as_py(),
                place=place(found.row),
                place_before=place(found.row_before).removeprefix(f"{file} "),
                found=found.listed,
                found_before=found.listed_before,
                setting="spec.data.constantInSession",
            )
        )


def times_of(column: pa.ChunkedArray) -> IndexArray:
    """Return [rows] integers in the order of the times."""
    if not pa.types.is_uint64(column.type):
        return _whole_numbers(column)
    numbers: IndexArray = (column.to_numpy() ^ np.uint64(1 << 63)).view(np.int64)
    return numbers


def _whole_numbers(column: pa.ChunkedArray) -> IndexArray:
    """Return integers or timestamps, those of 64 bits without a sign wrapped around."""
    numbers: IndexArray = (column if pa.types.is_integer(column.type) else column.cast(pa.int64())).to_numpy()
    return numbers.astype(np.int64)

"""From the ids of a log to rows of a table: one rule for statistics, training, and exported models.

    Exact     row = id
    Modulo    row = id mod rows, from 0 on: -1 mod 10 is 9
    Hash      row = xxh64(bytes of the id, seed 0) mod rows, both without a sign

The bytes of a text are its UTF-8, those of an integer its 8 bytes in little-endian order and two's complement: 1 is
01 00 00 00 00 00 00 00. The row is a function of id and number of rows alone, so that it is the same on every machine,
under every plan, and after every restart. Needs numpy, and for texts xxhash; never imports torch.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.tables import IdRule, Table
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import MissingPackageError
from numpy.typing import NDArray

from neuroshard_trainer.data.samples import IndexArray

Words = NDArray[np.uint64]

_MODULO_FORMATS = (DataFormat.CRITEO_TSV, DataFormat.CRITEO_BINARY, DataFormat.CRITEO_MULTI_HOT)
_FORMATS_OF_ROWS = (DataFormat.SYNTHETIC, DataFormat.MOVIELENS_100K, DataFormat.DATASET)
_LARGEST = np.iinfo(np.int64).max
# xxh64's primes. The bytes of an integer are one lane of 8, which shortens the algorithm to that lane and the end.
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def id_rule_of(table: Table, data_format: DataFormat) -> IdRule:
    """Return the rule of a table's ids: its own, or that of the format of its data, which may have rows alone."""
    default = default_rule(data_format)
    return default if data_format in _FORMATS_OF_ROWS else table.id_rule or default


def default_rule(data_format: DataFormat) -> IdRule:
    """Return the rule of tables that have none."""
    return IdRule.MODULO if data_format in _MODULO_FORMATS else IdRule.EXACT


def rows_of_integers(ids: NDArray[np.integer], rule: IdRule, num_rows: int) -> IndexArray:
    """Return the rows of integers of any type; under Exact a row may be outside the table, which the reader refuses."""
    if rule is IdRule.HASH:
        return _remainders(hashes_of_integers(ids), num_rows)
    if ids.dtype == np.uint64:
        if rule is IdRule.MODULO:
            return _remainders(ids.astype(np.uint64, copy=False), num_rows)
        below: IndexArray = np.minimum(ids, np.uint64(_LARGEST)).astype(np.int64)
        return below
    rows: IndexArray = ids.astype(np.int64)
    if rule is IdRule.MODULO:
        rows -= rows // num_rows * num_rows  # numpy divides by a scalar faster than it takes remainders
    return rows


def rows_of_texts(texts: Sequence[str | bytes], num_rows: int) -> IndexArray:
    """Return the rows of texts, which have the rule Hash alone. Raises MissingPackageError."""
    return rows_of_hashes(hashes_of_texts(texts), num_rows)


def rows_of_hashes(hashes: Words, num_rows: int) -> IndexArray:
    """Return the rows of hashes under the rule Hash."""
    return _remainders(hashes, num_rows)


def hashes_of_integers(ids: NDArray[np.integer]) -> Words:
    """Return xxh64 with seed 0 of the 8 bytes of each integer."""
    lanes: Words = ids.astype(np.uint64)  # two's complement of negative ones
    hashes = _rotated(lanes * np.uint64(_PRIME_2), 31)
    hashes *= np.uint64(_PRIME_1)
    hashes ^= np.uint64(_PRIME_5 + 8)
    hashes = _rotated(hashes, 27)
    hashes *= np.uint64(_PRIME_1)
    hashes += np.uint64(_PRIME_4)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(_PRIME_2)
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(_PRIME_3)
    hashes ^= hashes >> np.uint64(32)
    return hashes


def hashes_of_texts(texts: Sequence[str | bytes]) -> Words:
    """Return xxh64 with seed 0 of the UTF-8 of each text, or of bytes as they are. Raises MissingPackageError."""
    return hashes_of_bytes([text.encode() if isinstance(text, str) else text for text in texts])


def hashes_of_bytes(texts: Sequence[bytes]) -> Words:
    """Return xxh64 with seed 0 of each. Raises MissingPackageError."""
    try:
        from xxhash import xxh64_intdigest  # noqa: PLC0415 - only for texts
    except ImportError as error:
        raise MissingPackageError(
            f"ids that are texts are hashed by xxhash ({error}); hint: `pip install xxhash`"
        ) from error
    return np.fromiter(map(xxh64_intdigest, texts), dtype=np.uint64, count=len(texts))


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _remainders(words: Words, num_rows: int) -> IndexArray:
    rows = np.uint64(num_rows)
    return (words - words // rows * rows).astype(np.int64)

"""From the ids of a log to rows of a table: one rule for statistics, training, and exported models.

    Exact     row = id
    Modulo    row = id mod rows, from 0 on: -1 mod 10 is 9
    Hash      row = xxh64(bytes of the id, seed 0) mod rows, both without a sign

The bytes of a text are its UTF-8, those of an integer its 8 bytes in little-endian order and two's complement: 1 is
01 00 00 00 00 00 00 00. The row is a function of id and number of rows alone, so that it is the same on every machine,
under every plan, and after every restart. ``predict.py`` has the formulas, so that exported models have the same.
Needs numpy, and for texts xxhash; never imports torch.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.process.errors import MissingPackageError
from numpy.typing import NDArray

from neuroshard_trainer.data.samples import IndexArray
from neuroshard_trainer.predict import hash_rows, table_rows, text_hashes

Words = NDArray[np.uint64]


def rows_of_integers(ids: NDArray[np.integer], rule: IdRule, num_rows: int) -> IndexArray:
    """Return the rows of integers of any type; under Exact a row may be outside the table, which the reader refuses."""
    return table_rows(ids, rule, num_rows)


def rows_of_texts(texts: Sequence[str | bytes], num_rows: int) -> IndexArray:
    """Return the rows of texts, which have the rule Hash alone. Raises MissingPackageError."""
    return rows_of_hashes(hashes_of_texts(texts), num_rows)


def rows_of_hashes(hashes: Words, num_rows: int) -> IndexArray:
    """Return the rows of hashes under the rule Hash."""
    return hash_rows(hashes, num_rows)


def hashes_of_texts(texts: Sequence[str | bytes]) -> Words:
    """Return xxh64 with seed 0 of the UTF-8 of each text, or of bytes as they are. Raises MissingPackageError."""
    return hashes_of_bytes([text.encode() if isinstance(text, str) else text for text in texts])


def hashes_of_bytes(texts: Sequence[bytes | memoryview]) -> Words:
    """Return xxh64 with seed 0 of each. Raises MissingPackageError."""
    try:
        return text_hashes(texts)
    except ImportError as error:
        raise MissingPackageError(
            f"ids that are texts are hashed by xxhash ({error}); hint: `pip install xxhash`"
        ) from error

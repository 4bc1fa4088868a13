"""xxh64 of the texts of an Arrow array, from its buffers: no Python object is made for a text of fewer than 32 bytes.

The steps of the algorithm (Y. Collet, xxHash specification 0.1.1) are in ``predict.py``. Each takes all texts that have
bytes left for it at once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from neuroshard_trainer.data.id_rules import Words, hashes_of_bytes
from neuroshard_trainer.predict import begun_hashes, finished_hashes, with_byte, with_half_lane, with_lane

_STRIPE = 32
"""Bytes from which on xxh64 has four states; such texts are left to the package."""
_STEPS: tuple[tuple[np.dtype[Any], Callable[[Words, Words], Words], int], ...] = (
    (np.dtype("<u8"), with_lane, 3),
    (np.dtype("<u4"), with_half_lane, 1),
    (np.dtype("u1"), with_byte, 3),
)
"""Bytes that a step takes, and its maximum number in a text."""


def text_array_hashes(texts: pa.Array) -> Words:
    """Return xxh64 with seed 0 of the bytes of each text of an array without nulls, of texts in one buffer.

    Raises:
        MissingPackageError: a text has 32 bytes or more, and xxhash is not installed.
    """
    is_large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets, data = texts.buffers()
    found = np.frombuffer(offsets, dtype=np.int64 if is_large else np.int32)
    ends: NDArray[np.int64] = found[texts.offset : texts.offset + len(texts) + 1].astype(np.int64, copy=False)
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    starts = ends[:-1]
    lengths = ends[1:] - starts
    is_long = lengths >= _STRIPE
    if not is_long.any():
        return _short_hashes(content, starts, lengths)
    hashes = np.empty(len(texts), dtype=np.uint64)
    hashes[~is_long] = _short_hashes(content, starts[~is_long], lengths[~is_long])
    held = content.data
    spans = zip(starts[is_long].tolist(), ends[1:][is_long].tolist(), strict=True)
    hashes[is_long] = hashes_of_bytes([bytes(held[first:last]) for first, last in spans])
    return hashes


def _short_hashes(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Words:
    states, place, left = begun_hashes(lengths), starts.copy(), lengths.copy()
    for word, step, most in _STEPS:
        width = word.itemsize
        words = np.ndarray((max(0, len(content) - width + 1),), dtype=word, buffer=content, strides=(1,))
        for _ in range(most):
            has_more = left >= width
            if has_more.all():
                states = step(states, words[place].astype(np.uint64))
                place += width
                left -= width
            elif has_more.any():
                states[has_more] = step(states[has_more], words[place[has_more]].astype(np.uint64))
                place[has_more] += width
                left[has_more] -= width
            else:
                break
    return finished_hashes(states)

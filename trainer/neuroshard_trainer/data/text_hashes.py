"""xxh64 of the texts of an Arrow array, from its buffers: texts of one length together, without a Python object each.

The algorithm is that of Y. Collet, xxHash specification 0.1.1. Texts of 32 bytes or more have four states, which take a
stripe of 32 bytes at a time and are then merged; 8, 4, and single bytes follow. ``predict.py`` has the steps that the
hash of an integer has, too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from neuroshard_trainer.data.id_rules import Words, hashes_of_bytes
from neuroshard_trainer.predict import PRIMES, begun_hashes, finished_hashes, mixed_lanes, rotated, with_lane

_STRIPE = 32
_LONG = 512
"""Bytes of texts that are left to the package, which hashes at the speed of memory from here on."""
_FEW = 64
"""Texts of one length that are left to the package: the steps for arrays cost more than the objects."""
_LANE, _HALF_LANE, _BYTE = np.dtype("<u8"), np.dtype("<u4"), np.dtype("u1")
Read = Callable[[int, np.dtype[Any]], Words]
"""Returns the unsigned integer of a type at a place of each text."""


def text_array_hashes(texts: pa.Array) -> Words:
    """Return xxh64 with seed 0 of the bytes of each text of an array without nulls, of texts in one buffer.

    Raises:
        MissingPackageError: xxhash is needed for texts whose length few have, and is not installed.
    """
    is_large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets, data = texts.buffers()
    found = np.frombuffer(offsets, dtype=np.int64 if is_large else np.int32)
    ends = found[texts.offset : texts.offset + len(texts) + 1].astype(np.int64, copy=False)
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    if not len(texts) or (lengths == lengths[0]).all():
        return _hashes(content, starts, int(lengths[0]) if len(texts) else 0, are_adjacent=True)
    kinds = np.minimum(lengths, _LONG).astype(np.uint16)  # NumPy sorts integers of 16 bits by their digits
    order = np.argsort(kinds, kind="stable")
    hashes = np.empty(len(texts), dtype=np.uint64)
    last = 0
    for length, count in enumerate(np.bincount(kinds).tolist()):
        if count:
            first, last = last, last + count
            places = order[first:last]
            hashes[places] = (
                _hashes_by_package(content, starts[places], lengths[places])
                if length == _LONG or count < _FEW
                else _hashes(content, starts[places], length, are_adjacent=False)
            )
    return hashes


def _hashes_by_package(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Words:
    held = content.data
    spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return hashes_of_bytes([held[first:last] for first, last in spans])


def _hashes(content: NDArray[np.uint8], starts: NDArray[np.int64], length: int, *, are_adjacent: bool) -> Words:
    """Return the hashes of texts of one length; adjacent ones follow each other without a gap."""

    def read(place: int, kind: np.dtype[Any]) -> Words:
        if are_adjacent:
            first = int(starts[0]) + place
            words = np.ndarray((len(starts),), dtype=kind, buffer=content, offset=first, strides=(length,))
            return words.astype(np.uint64)
        words = np.ndarray((len(content) - kind.itemsize + 1,), dtype=kind, buffer=content, strides=(1,))
        return words[starts + place].astype(np.uint64, copy=False)

    place = length // _STRIPE * _STRIPE
    states = _striped(read, len(starts), place) + np.uint64(length) if place else begun_hashes(length, len(starts))
    for kind, step in ((_LANE, with_lane), (_HALF_LANE, _with_half_lane), (_BYTE, _with_byte)):
        while place + kind.itemsize <= length:
            states = step(states, read(place, kind))
            place += kind.itemsize
    return finished_hashes(states)


def _striped(read: Read, count: int, num_bytes: int) -> Words:
    """Return the merged states after whole stripes."""
    with np.errstate(over="ignore"):
        begin = (PRIMES[0] + PRIMES[1], PRIMES[1], np.uint64(0), np.uint64(0) - PRIMES[0])
    states = [np.full(count, each, dtype=np.uint64) for each in begin]
    for place in range(0, num_bytes, _STRIPE):
        for number, state in enumerate(states):
            mixed = rotated(state + read(place + 8 * number, _LANE) * PRIMES[1], 31)
            mixed *= PRIMES[0]
            states[number] = mixed
    merged = rotated(states[0], 1) + rotated(states[1], 7) + rotated(states[2], 12) + rotated(states[3], 18)
    for state in states:
        merged ^= mixed_lanes(state)
        merged *= PRIMES[0]
        merged += PRIMES[3]
    return merged


def _with_half_lane(states: Words, lanes: Words) -> Words:
    """Return states after 4 further bytes, where fewer than 8 are left."""
    lanes *= PRIMES[0]
    states = rotated(states ^ lanes, 23)
    states *= PRIMES[1]
    states += PRIMES[2]
    return states


def _with_byte(states: Words, values: Words) -> Words:
    """Return states after one further byte, where fewer than 4 are left."""
    values *= PRIMES[4]
    states = rotated(states ^ values, 11)
    states *= PRIMES[0]
    return states

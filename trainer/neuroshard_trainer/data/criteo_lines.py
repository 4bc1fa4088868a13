"""Lines of Criteo's text files as arrays. The one parser of the format: the trainer and `neuroshard stats` share it.

A line has a label, 13 integers and 26 hexadecimal hashes, separated by tabs; any cell but the label may be empty. Cells
are parsed eight characters at a time, as one 64-bit word each, for all lines at once (SWAR: SIMD within a register).
"""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuroshard_trainer.data.samples import FloatArray, IndexArray

NUM_DENSE, NUM_HASHES = 13, 26
FEATURES = tuple(f"cat_{position}" for position in range(NUM_HASHES))
COLUMNS = ("label", *(f"int_{position}" for position in range(NUM_DENSE)), *FEATURES)
MAX_HASH_DIGITS = 16

Words = NDArray[np.uint64]

_TAB, _NEWLINE, _MINUS, _ZERO = b"\t\n-0"
_WORD_BYTES = 8
_FIRST_HASH = 1 + NUM_DENSE
_NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_SEPARATORS = np.array([_TAB] * (len(COLUMNS) - 1) + [_NEWLINE], dtype=np.uint8)
_HASH = re.compile(rb"[0-9a-fA-F]{1,%d}" % MAX_HASH_DIGITS)


def _repeated(value: int, *, bits: int = 8) -> np.uint64:
    """Return a word that holds a value in each of its lanes."""
    return np.uint64(sum(value << at for at in range(0, 64, bits)))


_ALL_BITS = _repeated(0xFF)
_NIBBLES, _HIGH_NIBBLES, _ONES = _repeated(0x0F), _repeated(0xF0), _repeated(1)
_DIGIT_0, _SIXES = _repeated(0x30), _repeated(6)
_FROM_9_TO_A = np.uint64(ord("a") - ord("9") - 1)
_BYTES_OF_16, _HALVES_OF_32, _LOW_HALF = _repeated(0xFF, bits=16), _repeated(0xFFFF, bits=32), np.uint64(0xFFFFFFFF)


class LineError(ValueError):
    """A line breaks the format.

    Args:
        row: number of the line, from 0 on.
        problem: what is wrong with it.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, kw_only=True, slots=True)
class CriteoLines:
    """Some lines."""

    labels: FloatArray
    """0 or 1, shape (lines,)."""
    integers: FloatArray
    """Shape (lines, 13); 0 where a cell is empty."""
    hashes: Words
    """Shape (26, lines); 0 where a cell is empty."""
    present: NDArray[np.bool_]
    """Whether there is a hash, shape (26, lines)."""


def parse_lines(text: bytes) -> CriteoLines:
    """Return whole lines as arrays; the last one may lack its newline.

    Raises:
        LineError: a line breaks the format.
    """
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if text and not text.endswith(b"\n"):
        text += b"\n"
    padding = b"0" * _WORD_BYTES
    characters = np.frombuffer(padding + text + padding + b"0" * (-len(text) % _WORD_BYTES), dtype=np.uint8)
    separators = np.flatnonzero(characters <= _NEWLINE)  # no character of a valid cell is below
    if len(separators) % len(COLUMNS) or (characters[separators].reshape(-1, len(COLUMNS)) != _SEPARATORS).any():
        raise _first_fault(text)
    starts = np.concatenate(([_WORD_BYTES], separators + 1))[:-1].reshape(-1, len(COLUMNS))
    ends = separators.reshape(-1, len(COLUMNS))
    labels = characters[starts[:, 0]] - np.uint8(_ZERO)
    if not ((labels <= 1) & (ends[:, 0] - starts[:, 0] == 1)).all():
        raise _first_fault(text)
    words = characters.view("<u8")
    try:
        integers = _integers(text, words, starts[:, 1:_FIRST_HASH], ends[:, 1:_FIRST_HASH], characters)
        hash_ends = np.ascontiguousarray(ends[:, _FIRST_HASH:].T)
        lengths = hash_ends - starts[:, _FIRST_HASH:].T
        hashes = _hashes(words, hash_ends, lengths)
    except ValueError as error:
        raise _first_fault(text) from error
    return CriteoLines(labels=labels.astype(np.float32), integers=integers, hashes=hashes, present=lengths > 0)


def _last_eight(words: Words, ends: IndexArray, lengths: IndexArray) -> tuple[Words, Words]:
    """Return the last eight characters of each cell, the last one in the highest byte, and a mask of those it has."""
    begin = ends - _WORD_BYTES
    index, shift = begin >> 3, ((begin & 7) << 3).astype(np.uint64)
    low = words[index] >> shift
    high = (words[index + 1] << np.uint64(1)) << (np.uint64(63) - shift)
    missing = ((_WORD_BYTES - np.minimum(lengths, _WORD_BYTES)) << 3).astype(np.uint64)
    half = missing >> np.uint64(1)  # a shift by 64 is undefined, two by 32 are not
    mask = (_ALL_BITS << half) << (missing - half)
    return (low | high) & mask, mask


def _hashes(words: Words, ends: IndexArray, lengths: IndexArray) -> Words:
    """Return hexadecimal numbers. Raises ValueError for what is none, or has more than 16 digits."""
    cells, mask = _last_eight(words, ends, lengths)
    digits = (cells & _NIBBLES) + ((cells >> np.uint64(6)) & _ONES) * np.uint64(9)
    letters = ((digits + _SIXES) >> np.uint64(4)) & _ONES
    lower_case = cells | (letters << np.uint64(5))
    expected = (digits + _DIGIT_0 + letters * _FROM_9_TO_A) & mask
    if ((expected != lower_case) | ((digits & _HIGH_NIBBLES) != 0)).any():
        raise ValueError
    pairs = ((digits & _BYTES_OF_16) << np.uint64(4)) | ((digits >> np.uint64(8)) & _BYTES_OF_16)
    quads = ((pairs & _HALVES_OF_32) << np.uint64(8)) | ((pairs >> np.uint64(16)) & _HALVES_OF_32)
    values: Words = ((quads & _LOW_HALF) << np.uint64(16)) | (quads >> np.uint64(32))
    long = np.flatnonzero(lengths > _WORD_BYTES)
    if long.size:
        if lengths.max() > MAX_HASH_DIGITS:
            raise ValueError
        upper = _hashes(words, ends.ravel()[long] - _WORD_BYTES, lengths.ravel()[long] - _WORD_BYTES)
        values.ravel()[long] |= upper << np.uint64(32)
    return values


def _integers(
    text: bytes, words: Words, starts: IndexArray, ends: IndexArray, characters: NDArray[np.uint8]
) -> FloatArray:
    """Return decimal numbers; what is not an integer of at most eight digits is parsed by itself. Raises ValueError."""
    starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
    lengths = ends - starts
    negative = (characters[starts] == _MINUS) & (lengths > 0)
    num_digits = lengths - negative
    cells, mask = _last_eight(words, ends, num_digits)
    digits = cells & _NIBBLES
    is_other = ((cells ^ _DIGIT_0) & _HIGH_NIBBLES & mask) | ((digits + _SIXES) & _HIGH_NIBBLES)
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & _BYTES_OF_16
    quads = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & _HALVES_OF_32
    values: FloatArray = ((quads * np.uint64(10_000) + (quads >> np.uint64(32))) & _LOW_HALF).astype(np.float32)
    np.negative(values, out=values, where=negative)
    for at in np.argwhere((is_other != 0) | (num_digits > _WORD_BYTES) | (negative & (num_digits == 0))):
        row, column = at.tolist()
        cell = text[starts[row, column] - _WORD_BYTES : ends[row, column] - _WORD_BYTES]
        if not _NUMBER.fullmatch(cell):
            raise ValueError
        values[row, column] = float(cell)
    return values


def _first_fault(text: bytes) -> LineError:
    """Return the error of the first line that breaks the format; there is one."""
    for row, line in enumerate(text.split(b"\n")[:-1]):
        cells = line.split(b"\t")
        if len(cells) != len(COLUMNS):
            found = f"has {len(cells)} columns, expected {len(COLUMNS)}"
            needed = f"label, {NUM_DENSE} integers, {NUM_HASHES} hashes, separated by tabs"
            return LineError(row, f"{found}: {needed}; hint: leave no cell out, an empty one is between two tabs")
        for name, cell in zip(COLUMNS, cells, strict=True):
            expected = _expected_instead(name, cell)
            if expected:
                shown = cell[:40].decode(errors="replace")
                found = f"column {name}: expected {expected}, found {shown!r}"
                return LineError(row, f"{found}; hint: correct or drop the line")
    raise AssertionError("no line of a text that was refused breaks the format")


def _expected_instead(column: str, cell: bytes) -> str | None:
    """Return the expected content of a cell; None: it is well formed."""
    if column == "label":
        return None if cell in {b"0", b"1"} else "0 or 1"
    if not cell:
        return None
    if column in FEATURES:
        return None if _HASH.fullmatch(cell) else f"a hexadecimal hash of at most {MAX_HASH_DIGITS} digits"
    return None if _NUMBER.fullmatch(cell) else "a number"

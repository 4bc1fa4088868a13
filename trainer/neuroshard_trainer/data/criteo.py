"""The Criteo challenges' text files: one sample per line, tab-separated, without a header; `criteo_lines` parses them.

Features are called ``cat_0`` to ``cat_25``. A hash is taken modulo the rows of its table, as is usual for this data; an
empty one looks nothing up. An integer x becomes log(1 + max(x, 0)), an empty one 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neuroshard_trainer.data.criteo_lines import FEATURES, NUM_DENSE, LineError, parse_lines
from neuroshard_trainer.data.samples import Feature, Jagged, Samples
from neuroshard_trainer.data.source import BLOCK_SAMPLES, require_features
from neuroshard_trainer.errors import DataError

_SCAN_BYTES = 2**24  # read at once when lines are counted


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Some whole lines of one file."""

    file: Path
    first_line: int
    offset: int
    num_bytes: int
    num_lines: int


class CriteoSource:
    """Criteo files, read by blocks of lines; the files are scanned once for the ends of their lines."""

    def __init__(self, files: Sequence[Path], features: Sequence[Feature], *, num_dense: int) -> None:
        require_features(features, FEATURES, where="the Criteo format")
        if num_dense != NUM_DENSE:
            raise DataError(f"spec.model.numDenseFeatures: is {num_dense}, Criteo's data has {NUM_DENSE}; set that")
        self._features = features
        self._blocks = [block for file in files for block in _blocks_of(file)]
        self.block_sizes = tuple(block.num_lines for block in self._blocks)

    def read(self, block: int) -> Samples:
        """Return a block's samples. Raises DataError with the number of the first malformed line."""
        try:
            lines = parse_lines(_bytes_of(self._blocks[block]))
        except LineError as error:
            raise DataError(f"{self.place(block, error.row)}: {error}") from error
        lookups = {}
        for feature in self._features:
            position = FEATURES.index(feature.name)
            present, rows = lines.present[position], np.uint64(feature.table.num_embeddings)
            hashes = lines.hashes[position][present]
            ids = (hashes - hashes // rows * rows).astype(np.int64)  # the remainder; numpy divides by a scalar faster
            lookups[feature.name] = Jagged.of_lengths(ids, present.astype(np.int64))
        return Samples(labels=lines.labels, dense=np.log1p(np.maximum(lines.integers, 0)), lookups=lookups)

    def place(self, block: int, row: int) -> str:
        """Return file and line."""
        return f"{self._blocks[block].file} line {self._blocks[block].first_line + row}"


def _blocks_of(file: Path) -> list[_Block]:
    """Return the file in blocks of lines."""
    starts = [0]
    num_lines, size = 0, 0
    ends_in_newline = True
    try:
        with file.open("rb") as stream:
            while piece := stream.read(_SCAN_BYTES):
                newlines = np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) == ord("\n"))
                at = np.arange(-num_lines % BLOCK_SAMPLES - 1, len(newlines), BLOCK_SAMPLES)
                starts.extend((newlines[at[at >= 0]] + size + 1).tolist())
                num_lines += len(newlines)
                size += len(piece)
                ends_in_newline = piece.endswith(b"\n")
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
    num_lines += 0 if ends_in_newline else 1
    if not num_lines:
        raise DataError(f"{file}: is empty; expected one sample per line")
    ends = [*starts[1:], size]
    return [
        _Block(
            file=file,
            first_line=index * BLOCK_SAMPLES + 1,
            offset=start,
            num_bytes=end - start,
            num_lines=min(BLOCK_SAMPLES, num_lines - index * BLOCK_SAMPLES),
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        if end > start
    ]


def _bytes_of(block: _Block) -> bytes:
    try:
        with block.file.open("rb") as stream:
            stream.seek(block.offset)
            text = stream.read(block.num_bytes)
    except OSError as error:
        raise DataError(f"{block.file}: cannot be read: {error.strerror or error}") from error
    if len(text) < block.num_bytes:
        raise DataError(f"{block.file}: was cut off while it was read; do not change data under a running job")
    return text

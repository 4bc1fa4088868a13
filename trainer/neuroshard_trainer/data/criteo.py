"""The Criteo challenges' text files: one sample per line, tab-separated, without a header.

A line has the label, 13 integers and 26 hexadecimal hashes; any but the label may be empty. Features are called
``cat_0`` to ``cat_25``. A hash is taken modulo the rows of its table, as is usual for this data; an empty one looks
nothing up. An integer x becomes log(1 + max(x, 0)), an empty one 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from neuroshard_trainer.data.samples import Feature, FloatArray, Jagged, Samples
from neuroshard_trainer.data.source import BLOCK_SAMPLES, require_features
from neuroshard_trainer.errors import DataError

NUM_DENSE = 13
FEATURES = tuple(f"cat_{position}" for position in range(26))
_DENSE_COLUMNS = tuple(f"int_{position}" for position in range(NUM_DENSE))
_COLUMNS = ("label", *_DENSE_COLUMNS, *FEATURES)
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
        wanted = [feature.name for feature in features]
        types = {"label": pa.float32(), **dict.fromkeys(_DENSE_COLUMNS, pa.float64())}
        self._convert = csv.ConvertOptions(
            include_columns=["label", *_DENSE_COLUMNS, *wanted],
            column_types={**types, **dict.fromkeys(wanted, pa.dictionary(pa.int32(), pa.string()))},
            null_values=[""],
            strings_can_be_null=True,
        )

    def read(self, block: int) -> Samples:
        """Return a block's samples. Raises DataError with the number of the first malformed line."""
        where = self._blocks[block]
        text = _bytes_of(where)
        try:
            table = csv.read_csv(
                pa.BufferReader(text),
                read_options=csv.ReadOptions(column_names=list(_COLUMNS), use_threads=False, block_size=len(text) + 1),
                parse_options=csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
                convert_options=self._convert,
            ).combine_chunks()
            lookups = {feature.name: _hashed(table[feature.name].chunk(0), feature) for feature in self._features}
        except (pa.ArrowInvalid, ValueError) as error:
            raise DataError(_fault(text, where) or f"{self.place(block, 0)}: {error}") from error
        if table["label"].null_count:
            raise DataError(_fault(text, where) or f"{self.place(block, 0)}: a label is missing")
        return Samples(labels=table["label"].to_numpy(), dense=_dense(table), lookups=lookups)

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


def _dense(table: pa.Table) -> FloatArray:
    columns = [table[name].fill_null(0.0).to_numpy() for name in _DENSE_COLUMNS]
    dense: FloatArray = np.log1p(np.maximum(np.stack(columns, axis=1), 0.0)).astype(np.float32)
    return dense


def _hashed(column: pa.DictionaryArray, feature: Feature) -> Jagged:
    """Return at most one lookup per line. Raises ValueError for what is no hexadecimal number."""
    rows = feature.table.num_embeddings
    distinct = np.array([int(text, 16) % rows for text in column.dictionary.to_pylist()], dtype=np.int64)
    present = column.is_valid().to_numpy(zero_copy_only=False)
    codes = column.indices.fill_null(0).to_numpy()[present]
    return Jagged.of_lengths(distinct[codes], present.astype(np.int64))


def _fault(text: bytes, block: _Block) -> str | None:
    """Return what is wrong with the first malformed line; None: nothing that can be named."""
    for number, raw in enumerate(text.split(b"\n")[: block.num_lines], start=block.first_line):
        where = f"{block.file} line {number}"
        cells = raw.rstrip(b"\r").decode(errors="replace").split("\t")
        if len(cells) != len(_COLUMNS):
            return f"{where}: has {len(cells)} columns, expected {len(_COLUMNS)}: label, 13 integers, 26 hashes"
        for name, cell in zip(_COLUMNS, cells, strict=True):
            base = 16 if name in FEATURES else 10
            if (cell or name == "label") and not _is_number(cell, base):
                kind = "a hexadecimal hash" if base == 16 else "a number"  # noqa: PLR2004 - hexadecimal
                return f"{where}, column {name}: expected {kind}, found {cell[:40]!r}"
    return None


def _is_number(cell: str, base: int) -> bool:
    try:
        if base == 10:  # noqa: PLR2004 - decimal
            float(cell)
        else:
            int(cell, base)
    except ValueError:
        return False
    return True

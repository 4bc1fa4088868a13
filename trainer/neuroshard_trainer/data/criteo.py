"""The Criteo challenges' text files: one sample per line, tab-separated, without a header; `criteo_lines` parses them.

Features are called ``cat_0`` to ``cat_25``. A hash is taken modulo the rows of its table unless the table has
another id rule; an empty one looks nothing up. An integer x becomes log(1 + max(x, 0)), an empty one 0.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from neuroshard_api.documents.preprocessing import (
    DensePreprocessing,
    IdForm,
    Missing,
    Preprocessing,
    Transformation,
)
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.criteo_lines import COLUMNS, FEATURES, NUM_DENSE, LineError, parse_lines
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.line_index import LINES_PER_BLOCK, index_of
from neuroshard_trainer.data.preprocessing import dense_features, lookups_of, rows_of
from neuroshard_trainer.data.samples import Feature, Jagged, Samples
from neuroshard_trainer.data.source import DecodedBlocks, require_features
from neuroshard_trainer.data.unpack import unpacked


def require_criteo(features: Sequence[Feature], *, num_dense: int) -> None:
    """Do nothing if a model fits Criteo's data. Raises DataError."""
    require_features(features, FEATURES, where="the Criteo format")
    if num_dense != NUM_DENSE:
        raise DataError(f"spec.model.numDenseFeatures: is {num_dense}, Criteo's data has {NUM_DENSE}; hint: set that")


DENSE_NAMES = COLUMNS[1 : 1 + NUM_DENSE]


def preprocessing(features: Sequence[Feature]) -> Preprocessing:
    """Return the way from a line's cells to a model's inputs."""
    return Preprocessing(
        dense=tuple(
            DensePreprocessing(name=name, missing=Missing.ZERO, fill=0.0, transformation=Transformation.LOG1P)
            for name in DENSE_NAMES
        ),
        lookups=lookups_of(features, DataFormat.CRITEO_TSV, id_form=IdForm.HEXADECIMAL),
    )


class CriteoSource(DecodedBlocks):
    """Criteo's text files, read by blocks of lines.

    Args:
        files: plain or compressed.
        features: of the model.
        num_dense: of the model.
        spare: folder for indexes that cannot lie next to their file, and for unpacked copies.
    """

    def __init__(self, files: Sequence[DataFile], features: Sequence[Feature], *, num_dense: int, spare: Path) -> None:
        super().__init__()
        require_criteo(features, num_dense=num_dense)
        self._preprocessing = preprocessing(features)
        self._files = files
        self._plain = [unpacked(file, spare=spare) for file in files]
        indexes = [index_of(file, spare=spare) for file in self._plain]
        self._offsets = [index.offsets for index in indexes]
        sizes = [index.block_sizes for index in indexes]
        self._first_block = np.cumsum([0, *(len(each) for each in sizes)])
        self.block_sizes = np.concatenate(sizes)

    def read(self, block: int) -> Samples:
        """Return a block's samples. Raises DataError with the number of the first malformed line."""
        try:
            lines = parse_lines(self._text(block))
        except LineError as error:
            raise DataError(f"{self.place(block, error.row)}: {error}") from error
        if len(lines.labels) != self.block_sizes[block]:
            raise DataError(f"{self.place(block, 0)}: {_CHANGED}")
        lookups = {}
        for rule in self._preprocessing.lookups:
            position = FEATURES.index(rule.feature)
            present, hashes = lines.present[position], lines.hashes[position]
            if not present.all():
                hashes = hashes[present]
            lookups[rule.feature] = Jagged.of_lengths(rows_of(hashes, rule), present)
        dense = dense_features(lines.integers, self._preprocessing.dense)
        return Samples(labels=lines.labels, dense=dense, lookups=lookups)

    def place(self, block: int, row: int) -> str:
        """Return file and line."""
        file, within = self._within(block)
        return f"{self._files[file]} line {within * LINES_PER_BLOCK + row + 1}"

    def _within(self, block: int) -> tuple[int, int]:
        """Return the number of a block's file, and the block's number there."""
        file = int(np.searchsorted(self._first_block, block, side="right")) - 1
        return file, block - int(self._first_block[file])

    def _text(self, block: int) -> bytes:
        file, within = self._within(block)
        begin, end = (int(offset) for offset in self._offsets[file][within : within + 2])
        text = self._plain[file].read(begin, end - begin)
        if len(text) < end - begin:
            raise DataError(f"{self.place(block, 0)}: {_CHANGED}")
        return text


_CHANGED = "the file was changed since the training began; do not change data under a running job, start it again"

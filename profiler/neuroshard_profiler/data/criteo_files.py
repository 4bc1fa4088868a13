"""Criteo's data as batches of ids, by the trainer's own readers: text, also compressed, and the arrays of torchrec."""

from collections.abc import Iterator
from functools import partial
from itertools import islice

import numpy as np
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.feature_columns import DEFAULT_LABEL_COLUMN
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.criteo_binary import CriteoBinarySource
from neuroshard_trainer.data.criteo_lines import FEATURES, NUM_DENSE, LineError, parse_lines
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.samples import Feature, Samples
from neuroshard_trainer.data.unpack import UNPACKING_ERRORS, damaged, text_of

from neuroshard_profiler.data.batches import DataBatch, FeatureBatch, evenly
from neuroshard_profiler.data.columns import ChosenColumns
from neuroshard_profiler.data.numbers import SeenNumbers

_ROWS = 2**40
"""Of tables that the trainer's readers take ids modulo of: hashes have 32 bits, so that all of them stay apart."""


class CriteoText:
    """Criteo's text format: an empty cell looks nothing up."""

    ids_are_rows = False
    columns = ChosenColumns(features=FEATURES, label=DEFAULT_LABEL_COLUMN)
    num_dense = NUM_DENSE

    def __init__(self, file: DataFile) -> None:
        self._file = file

    @property
    def num_samples(self) -> None:
        """None: the number is unknown before the file is read."""

    def not_a_number(self, name: str) -> None:
        """Return None: the format has numbers."""

    def batches(self, num_samples: int, numbers: SeenNumbers | None = None) -> Iterator[DataBatch]:
        """Yield batches. Raises DataError with line and column."""
        first_line = 1
        with text_of(self._file) as stream:
            while lines := self._next(stream, num_samples):
                try:
                    parsed = parse_lines(b"".join(lines))
                except LineError as error:
                    line = first_line + error.row
                    or_csv = "; give --format CSV if it is a header" if line == 1 else ""
                    raise DataError(f"{self._file} line {line}: {error}{or_csv}") from error
                if numbers is not None:  # the parser refused all that training would
                    numbers.take({DEFAULT_LABEL_COLUMN: parsed.labels}, str)
                yield DataBatch(
                    num_samples=len(lines),
                    features={
                        name: FeatureBatch(
                            lengths=present.astype(np.int64),
                            ids=hashes[present].view(np.int64),  # told apart, not looked up: the sign says nothing
                        )
                        for name, hashes, present in zip(FEATURES, parsed.hashes, parsed.present, strict=True)
                    },
                    sessions=None,
                )
                first_line += len(lines)

    def _next(self, stream: Iterator[bytes], count: int) -> list[bytes]:
        try:
            return list(islice(stream, count))
        except UNPACKING_ERRORS as error:
            raise damaged(self._file, error) from error


class CriteoArrays:
    """Criteo's data as torchrec's arrays, with one lookup per feature and sample, or with several."""

    ids_are_rows = False
    columns = ChosenColumns(features=FEATURES, label=DEFAULT_LABEL_COLUMN)
    num_dense = NUM_DENSE

    def __init__(self, file: DataFile, *, multi_hot: bool) -> None:
        features = [
            Feature(name=name, table=Table(name=name, num_embeddings=_ROWS, embedding_dim=4)) for name in FEATURES
        ]
        self._source = CriteoBinarySource([file], features, num_dense=NUM_DENSE, multi_hot=multi_hot)

    @property
    def num_samples(self) -> None:
        """None: the number is unknown before the file is read."""

    def not_a_number(self, name: str) -> None:
        """Return None: the format has numbers."""

    def batches(self, num_samples: int, numbers: SeenNumbers | None = None) -> Iterator[DataBatch]:
        """Yield batches; none where there are no samples. Raises DataError."""
        yield from evenly(self._blocks(numbers), num_samples)

    def _blocks(self, numbers: SeenNumbers | None) -> Iterator[DataBatch]:
        for block, size in enumerate(self._source.block_sizes.tolist()):
            samples = self._source.take(block, np.arange(size))
            if numbers is not None:
                dense = dict(zip(numbers.dense, samples.dense.T, strict=True))
                numbers.take({DEFAULT_LABEL_COLUMN: samples.labels, **dense}, partial(self._source.place, block))
            yield _batch(samples)


def _batch(samples: Samples) -> DataBatch:
    return DataBatch(
        num_samples=len(samples),
        features={
            name: FeatureBatch(lengths=jagged.lengths.astype(np.int64), ids=jagged.values)
            for name, jagged in samples.lookups.items()
        },
        sessions=None,
    )

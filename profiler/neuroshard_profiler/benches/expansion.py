"""Measures copies of pooled embeddings to repeated lists, for jobs that have any. Draws none at random."""

from collections.abc import Iterator
from typing import Protocol

from neuroshard_api.documents.records import ExpansionSample
from neuroshard_api.documents.tables import TableSet

from neuroshard_profiler.backends.base import LabelledBackend
from neuroshard_profiler.benches.timed_samples import collect_timed
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats, Times

BATCH_SIZES = (256, 1024, 4096)
COLUMNS = (16, 48, 128)
FEATURES = (1, 4, 8)
_FACTOR = 4


class ExpansionBackend(LabelledBackend, Protocol):
    """Times copies on one device."""

    def measure_expansion(self, sample: ExpansionSample, *, repeats: Repeats) -> Times:
        """Time the sample's copies. Raises UnusableSampleError."""
        ...


def expansion_samples() -> Iterator[ExpansionSample]:
    """Yield the samples to copy."""
    for row, batch_size in enumerate(BATCH_SIZES):
        for column, columns in enumerate(COLUMNS):
            features = FEATURES[(row + column) % len(FEATURES)]  # each once with every batch and every width
            yield ExpansionSample(batch_size=batch_size, num_features=features, embedding_dim=columns, factor=_FACTOR)


def has_repeats(tables: TableSet | None) -> bool:
    """Return whether a job has tables whose repeated lists may be left out."""
    return tables is not None and any(table.duplication_group for table in tables.tables)


def collect_expansions(backend: ExpansionBackend, file: RecordsFile) -> None:
    """Append a record of each sample that the file lacks; one that a device refuses gets its reason."""
    collect_timed(backend, file, expansion_samples(), kind="expansion", measure=backend.measure_expansion)

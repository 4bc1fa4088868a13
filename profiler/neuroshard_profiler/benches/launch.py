"""Measures what a call costs beyond its tables: small table sets, each called in three ways. Draws none at random.

The sets keep a device busy for far less than the host takes to launch a call, so that the launch shows.
"""

from collections.abc import Iterator
from typing import Protocol

from neuroshard_api.documents.records import ComputeSample, LaunchTimes, ProfileRecord
from neuroshard_api.documents.tables import DataType, Optimizer, Table

from neuroshard_profiler.backends.base import LabelledBackend
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats

NUM_TABLES = (2, 4, 8)
BATCH_SIZES = (128, 512, 2048)
_ROWS, _COLUMNS, _POOLING = 10_000, 32, 2.0


class LaunchBackend(LabelledBackend, Protocol):
    """Times calls in three ways on one device."""

    @property
    def data_types(self) -> tuple[DataType, ...]:
        """Types of stored weights that can be timed, the usual one first."""
        ...

    def measure_launch(self, sample: ComputeSample, *, seed: int, repeats: Repeats) -> tuple[LaunchTimes, str | None]:
        """Time the sample's calls. Returns the times, and what disturbed them. Raises UnusableSampleError."""
        ...


def launch_samples(optimizer: Optimizer, data_type: DataType) -> Iterator[ComputeSample]:
    """Yield the table sets."""
    for num_tables in NUM_TABLES:
        tables = tuple(
            Table(
                name=f"t{index}",
                num_embeddings=_ROWS,
                embedding_dim=_COLUMNS,
                pooling_factor=_POOLING,
                data_type=data_type,
                zipf_exponent=0.0,
            )
            for index in range(num_tables)
        )
        for batch_size in BATCH_SIZES:
            yield ComputeSample(tables=tables, batch_size=batch_size, optimizer=optimizer)


def collect_launches(backend: LaunchBackend, optimizer: Optimizer, file: RecordsFile, *, seed: int = 0) -> None:
    """Append a record of each table set that the file lacks; one that a kernel refuses gets its reason."""
    samples = list(launch_samples(optimizer, backend.data_types[0]))
    for number in range(len(file.records), len(samples)):
        record = ProfileRecord(source=backend.source, launch=samples[number], environment=backend.environment)
        with file.appended(record) as measured:
            measured["launch_times"], measured["disturbance"] = backend.measure_launch(
                samples[number], seed=seed + number, repeats=backend.repeats
            )

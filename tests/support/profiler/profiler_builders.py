"""Builders for tests of the profiler: samples, and a backend whose times are made up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.documents.topology import DeviceType
from neuroshard_profiler.errors import OutOfDeviceMemoryError
from neuroshard_profiler.times import Repeats, Times
from support.builders import device_type, table

QUICK = Repeats(warm_up=1, least=3, most=3)


def compute_sample(*members: Any, batch_size: int = 64, **fields: Any) -> ComputeSample:
    """Return a call over these tables, or over two small ones, with row-wise Adagrad but for the given fields."""
    tables = members or (
        table("a", num_embeddings=100, embedding_dim=16),
        table("b", num_embeddings=50, embedding_dim=8, pooling_factor=3.0),
    )
    return ComputeSample(
        **{"tables": tables, "batch_size": batch_size, "optimizer": Optimizer.ROWWISE_ADAGRAD, **fields}
    )


@dataclass(frozen=True)
class SeenGpus:
    """GPUs that torch sees on a node."""

    names: tuple[str, ...] = ()
    built_for: str | None = "13.0"
    driver: str | None = "580.65.06"


class MadeUpBackend:
    """Times that follow from the seed; samples of more tables than it has room for run out of memory.

    ``failures`` are raised for the samples of these numbers.
    """

    def __init__(
        self,
        *,
        most_tables: int = 1000,
        source: str = "cpu:Made Up",
        failures: Mapping[int, Exception] | None = None,
    ) -> None:
        self.failures = failures or {}
        self.most_tables = most_tables
        self.source = source
        self.kind: Literal["cpu"] = "cpu"
        self.repeats = Repeats()
        self.optimizers = (Optimizer.SGD,)
        self.data_types = (DataType.FP32,)
        self.environment = {"library": "1.0"}
        self.total_memory_bytes = 2**30
        self.measured: list[ComputeSample] = []

    def describe(self, *, num_processes: int) -> DeviceType:
        """Return some device."""
        return device_type(memory_bytes=self.total_memory_bytes // num_processes)

    def measure(self, sample: ComputeSample, *, seed: int, repeats: Repeats) -> Times:
        """Return a time per table."""
        if len(sample.tables) > self.most_tables:
            raise OutOfDeviceMemoryError
        if seed in self.failures:
            raise self.failures[seed]
        self.measured.append(sample)
        return Times(forward_ms=1.0 + seed, backward_ms=2.0, spread=0.0, num_repeats=repeats.least)

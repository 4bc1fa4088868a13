"""Measures linear layers, for the compute of dense parts: the output, and the gradients of inputs and weights."""

from collections.abc import Iterator
from typing import Protocol

from neuroshard_api.documents.records import MatrixSample

from neuroshard_profiler.backends.base import LabelledBackend
from neuroshard_profiler.benches.timed_samples import collect_timed
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats, Times

BATCH_SIZES = (128, 1024, 8192)
SIDES = (64, 256, 1024, 4096)
"""Inputs, and as many outputs."""
MAX_CPU_FLOPS = 2 * 10**9
"""Of a forward pass on a core, which takes tens of milliseconds for them."""


class MatrixBackend(LabelledBackend, Protocol):
    """Times linear layers on one device."""

    def measure_matrix(self, sample: MatrixSample, *, repeats: Repeats) -> Times:
        """Time the sample's passes. Raises UnusableSampleError."""
        ...


def matrix_samples(*, on_cpu: bool) -> Iterator[MatrixSample]:
    """Yield the layers."""
    for side in SIDES:
        for batch_size in BATCH_SIZES:
            sample = MatrixSample(batch_size=batch_size, num_inputs=side, num_outputs=side)
            if not on_cpu or sample.forward_flops <= MAX_CPU_FLOPS:
                yield sample


def collect_matrices(backend: MatrixBackend, file: RecordsFile, *, on_cpu: bool) -> None:
    """Append a record of each layer that the file lacks; one that a device refuses gets its reason."""
    collect_timed(backend, file, matrix_samples(on_cpu=on_cpu), kind="matrix", measure=backend.measure_matrix)

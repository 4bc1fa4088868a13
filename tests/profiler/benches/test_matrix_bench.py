"""How linear layers are measured, on a real core."""

from pathlib import Path

import pytest
import torch
from neuroshard_api.documents.records import MatrixSample
from neuroshard_costs.fitting.matrices import fitted_matrices
from neuroshard_profiler.backends.matrix_call import MatrixCall
from neuroshard_profiler.backends.torch_native import TorchNativeBackend
from neuroshard_profiler.benches.matrix import MAX_CPU_FLOPS, collect_matrices, matrix_samples
from neuroshard_profiler.devices.cpu import CpuDevice
from neuroshard_profiler.errors import KernelError
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats, Times
from support.profiler.profiler_builders import QUICK

pytestmark = pytest.mark.torch


class OneCore(TorchNativeBackend):
    """A core that refuses layers of this many inputs."""

    def __init__(self, *, refused: int = 0) -> None:
        super().__init__(CpuDevice(core=0, repeats=QUICK))
        self._refused = refused

    def measure_matrix(self, sample: MatrixSample, *, repeats: Repeats) -> Times:
        """Time the sample's layer."""
        if sample.num_inputs == self._refused:
            raise KernelError("too wide")
        return super().measure_matrix(sample, repeats=repeats)


def test_a_stopped_collection_resumes_and_its_records_give_a_rate(tmp_path: Path) -> None:
    """Nothing is measured twice; what a device refused keeps its reason, and operations take time in both passes."""
    samples = list(matrix_samples(on_cpu=True))
    path = tmp_path / "matrices.jsonl"
    with RecordsFile(path, source=OneCore().source) as file:
        collect_matrices(OneCore(refused=samples[0].num_inputs), file, on_cpu=True)
    *lines, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    with RecordsFile(path, source=OneCore().source) as file:
        collect_matrices(OneCore(), file, on_cpu=True)

    assert [record.matrix for record in file.records] == samples
    refused = {record.matrix.num_inputs for record in file.records if record.failure == "too wide" and record.matrix}
    assert refused == {samples[0].num_inputs}
    found = fitted_matrices(file.records)
    assert found is not None
    assert min(found.operation_ms) > 0


def test_layers_on_a_core_are_small() -> None:
    """None takes a core longer than a moment."""
    on_cpu, on_gpu = list(matrix_samples(on_cpu=True)), list(matrix_samples(on_cpu=False))

    assert max(sample.forward_flops for sample in on_cpu) <= MAX_CPU_FLOPS < max(each.forward_flops for each in on_gpu)
    assert set(on_cpu) < set(on_gpu)


def test_the_call_is_a_linear_layer() -> None:
    """Its backward pass reaches inputs and weights."""
    call = MatrixCall(MatrixSample(batch_size=3, num_inputs=4, num_outputs=5), device=torch.device("cpu"))

    outputs = call.forward(0)

    assert outputs.shape == (3, 5)
    call.backward(outputs, torch.ones_like(outputs))

"""Specification of the FBGEMM backend, on the CPU with the real kernels."""

import numpy as np
import pytest
import torch
from neuroshard_api.sharding.kernels import DataType, Optimizer
from neuroshard_profiler.backends.base import Backend
from neuroshard_profiler.backends.lookups import draw_batches
from neuroshard_profiler.backends.torch_backend import TorchBackend
from neuroshard_profiler.benches.launch import launch_samples
from neuroshard_profiler.devices import cpu
from neuroshard_profiler.devices.cpu import CpuDevice
from neuroshard_profiler.errors import OutOfDeviceMemoryError
from support.builders import table
from support.profiler.profiler_builders import QUICK, compute_sample

pytestmark = [
    pytest.mark.torch,
    pytest.mark.torchrec,
    pytest.mark.filterwarnings("ignore"),  # FBGEMM's own warnings are not ours to mend; it is imported in the tests
]


@pytest.fixture
def backend() -> TorchBackend:
    """The CPU's backend."""
    from neuroshard_profiler.backends.fbgemm import FbgemmBackend

    return FbgemmBackend(CpuDevice.of_this_machine())


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD])
def test_every_offered_optimizer_is_timed(backend: Backend, optimizer: Optimizer) -> None:
    """Forward and backward take time, and the label says whose."""
    times = backend.measure(compute_sample(optimizer=optimizer), seed=0, repeats=QUICK)

    assert optimizer in backend.optimizers
    assert min(times.forward_ms, times.backward_ms) > 0
    assert backend.source.startswith("cpu:")


def test_calls_of_a_core_are_timed_together_and_apart(backend: TorchBackend) -> None:
    """A core is its own host, so there is no idle device to launch on."""
    sample = next(launch_samples(Optimizer.SGD, DataType.FP32))
    times, _ = backend.measure_launch(sample, seed=0, repeats=QUICK)

    assert times.alone_ms is None
    assert sum(times.two_calls_ms) > 0.5 * sum(times.one_call_ms) > 0


def test_what_has_no_kernel_on_a_cpu_is_not_offered(backend: Backend) -> None:
    """Adam and 8-bit tables are a GPU's."""
    assert Optimizer.ADAM not in backend.optimizers
    assert set(backend.data_types) == {DataType.FP32, DataType.FP16}


def test_types_of_one_sample_are_timed_together(backend: Backend) -> None:
    """A device with tables of two types makes a call for each in one step."""
    from neuroshard_profiler.backends.fbgemm import FusedCalls

    sample = compute_sample(table("a", num_embeddings=9), table("b", num_embeddings=9, data_type=DataType.FP16))

    times = backend.measure(sample, seed=0, repeats=QUICK)
    calls = FusedCalls(sample, draw_batches(sample, seed=0), device=torch.device("cpu"))

    assert min(times.forward_ms, times.backward_ms) > 0
    assert [weight.dtype for weight in calls.weights()] == [torch.float32, torch.float16]
    assert calls.forward(1).shape == (sample.batch_size, sum(each.embedding_dim for each in sample.tables))


def test_the_timed_call_is_a_sum_over_the_drawn_rows() -> None:
    """What is timed is pooling, not something next to it; and backward changes the tables."""
    from neuroshard_profiler.backends.fbgemm import FusedCalls

    sample = compute_sample(table("a", num_embeddings=7, embedding_dim=4, pooling_factor=2.5), batch_size=5)
    calls = FusedCalls(sample, draw_batches(sample, seed=3), device=torch.device("cpu"))
    weights = calls.weights()[0].detach().clone()
    lookups = draw_batches(sample, seed=3)[1][0]
    bags = np.split(lookups.rows, np.cumsum(lookups.lengths)[:-1])
    expected = torch.stack([weights[torch.from_numpy(bag)].sum(dim=0) for bag in bags])

    pooled = calls.forward(1)
    calls.backward(pooled, torch.ones_like(pooled))

    assert torch.allclose(pooled, expected, atol=1e-6)
    assert not torch.equal(calls.weights()[0], weights)


def test_a_sample_beyond_the_memory_is_refused_before_linux_kills(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux grants memory that it has not and kills later."""
    monkeypatch.setattr(cpu, "available_memory_bytes", lambda: 1000)

    with pytest.raises(OutOfDeviceMemoryError, match=r"needs \d+ bytes"):
        backend.measure(compute_sample(), seed=0, repeats=QUICK)


def test_an_allocation_that_fails_is_out_of_memory(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own message for it is a RuntimeError."""
    monkeypatch.setattr(cpu, "available_memory_bytes", lambda: 2**80)
    sample = compute_sample(table(num_embeddings=10**11, embedding_dim=512), batch_size=2)

    with pytest.raises(OutOfDeviceMemoryError):
        backend.measure(sample, seed=0, repeats=QUICK)

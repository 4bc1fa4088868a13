"""Specification of torch's own EmbeddingBag as a backend."""

import pytest
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_profiler.backends.torch_native import TorchNativeBackend
from neuroshard_profiler.devices.cpu import CpuDevice
from support.profiler.profiler_builders import QUICK, compute_sample

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # torch warns of its own optimizers
]


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAGRAD, Optimizer.ADAM])
def test_every_offered_optimizer_is_timed(optimizer: Optimizer) -> None:
    """The backward time includes the optimizer's step on sparse gradients."""
    backend = TorchNativeBackend(CpuDevice.of_this_machine())
    times = backend.measure(compute_sample(optimizer=optimizer), seed=0, repeats=QUICK)

    assert set(backend.optimizers) == {Optimizer.SGD, Optimizer.ADAGRAD, Optimizer.ADAM}
    assert backend.data_types == (DataType.FP32,)
    assert min(times.forward_ms, times.backward_ms) > 0

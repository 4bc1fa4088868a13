"""Specification of memory that streams share; GPU tensors are stand-ins that note the streams (simulated)."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_trainer.communication import gradient_codec, sparse_gradients
from neuroshard_trainer.communication.gradient_codec import GradientCodec
from neuroshard_trainer.communication.sparse_gradients import SparseGradients
from neuroshard_trainer.communication.streams import used_on_this_stream


@dataclass
class OnGpu:
    """A tensor on a GPU."""

    device: torch.device
    is_cuda: bool = True
    streams: list[Any] = field(default_factory=list)

    def record_stream(self, stream: Any) -> None:
        """Note the stream."""
        self.streams.append(stream)


def test_a_tensor_of_a_gpu_is_kept_for_the_stream_that_reads_it() -> None:
    """The current one of its device; the host's memory has no streams."""
    on_gpu = OnGpu(torch.device("cuda", 3))
    used_on_this_stream(on_gpu, torch.ones(1), current_stream=lambda device: f"stream of {device}")  # type: ignore[arg-type,return-value] # a stand-in

    assert on_gpu.streams == ["stream of cuda:3"]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return the list of tensors that are kept."""
    tensors: list[torch.Tensor] = []
    for module in (gradient_codec, sparse_gradients):
        monkeypatch.setattr(module, "used_on_this_stream", lambda *used: tensors.extend(used))
    return tensors


def test_the_sum_of_received_entries_keeps_what_it_reads(kept: list[torch.Tensor], group: Any) -> None:
    """The message was made on the training's stream, and the sum is the future's."""
    values = torch.arange(8.0)
    _, future, _ = SparseGradients(kept_share=0.25, refresh_steps=1, group=group).exchanged(0, values, step=0)
    future.wait()

    assert any(tensor is values for tensor in kept)
    assert any(tensor.dtype == torch.uint8 and tensor.shape[0] == group.size() for tensor in kept)


def test_carried_gradients_and_measured_errors_are_kept_for_their_reader(kept: list[torch.Tensor], group: Any) -> None:
    """Callbacks made them, and the training's stream reads them."""
    codec = GradientCodec(GradientExchange(type=GradientType.BF16), group=group)
    parameter, gradient, late = torch.zeros(4), torch.ones(4), torch.full((4,), 2.0)
    codec._carry([parameter], late)
    codec._add_carried([parameter], [gradient])
    mean, exact = torch.ones(4), torch.zeros(4)
    codec._compared(mean, exact)
    codec.take_error()

    assert gradient.tolist() == [3.0] * 4
    assert [tensor.tolist() for tensor in kept[:3]] == [late.tolist(), mean.tolist(), exact.tolist()]
    assert len(kept) == 5

"""torch's own EmbeddingBag, one call per table, with sparse gradients and torch's optimizers. Needs no FBGEMM."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import DataType, Optimizer
from torch import Tensor, nn

from neuroshard_profiler.backends.lookups import Batches, TableLookups
from neuroshard_profiler.backends.torch_backend import TorchBackend
from neuroshard_profiler.devices.base import TimedDevice

_LEARNING_RATE = 1e-3
_OPTIMIZERS: dict[Optimizer, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    Optimizer.SGD: lambda weights: torch.optim.SGD(weights, lr=_LEARNING_RATE),
    Optimizer.ADAGRAD: lambda weights: torch.optim.Adagrad(weights, lr=_LEARNING_RATE),
    Optimizer.ADAM: lambda weights: torch.optim.SparseAdam(weights, lr=_LEARNING_RATE),
}
"""torch has no row-wise Adagrad."""


class TorchNativeBackend(TorchBackend):
    """Times one nn.EmbeddingBag per table; the backward time includes the optimizer's step."""

    optimizers = tuple(_OPTIMIZERS)
    data_types = (DataType.FP32,)

    def __init__(self, device: TimedDevice) -> None:
        super().__init__(device, ())

    def calls(self, sample: ComputeSample, *, seed: int) -> "_NativeBags":
        """Make the sample's tables and batches."""
        return _NativeBags(sample, self.draw(sample, seed=seed), device=self.device.torch)


class _NativeBags:
    """One EmbeddingBag per table."""

    def __init__(self, sample: ComputeSample, batches: Batches, *, device: torch.device) -> None:
        self._bags = [
            nn.EmbeddingBag.from_pretrained(
                torch.full((table.num_embeddings, table.embedding_dim), 1e-2, device=device),
                freeze=False,
                mode="sum",
                sparse=True,
                include_last_offset=True,
            )
            for table in sample.tables
        ]
        self._optimizer = _OPTIMIZERS[sample.optimizer](
            [parameter for bag in self._bags for parameter in bag.parameters()]
        )
        self._inputs = [_inputs(batch, device) for batch in batches]

    def forward(self, number: int) -> Tensor:
        """Return the pooled embeddings of all tables side by side."""
        inputs = self._inputs[number % len(self._inputs)]
        return torch.cat([bag(*each) for bag, each in zip(self._bags, inputs, strict=True)], dim=1)

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:
        """Update the tables."""
        self._optimizer.zero_grad(set_to_none=True)
        pooled.backward(gradient)  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _inputs(batch: Sequence[TableLookups], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return for each table the rows, and where each bag begins and the last one ends."""
    return [
        (
            torch.from_numpy(each.rows).to(device),
            torch.from_numpy(np.concatenate(([0], np.cumsum(each.lengths)))).to(device),
        )
        for each in batch
    ]

"""A linear layer, as dense parts have many. Times nothing."""

import torch
from neuroshard_api.documents.records import MatrixSample
from neuroshard_api.job.training import Precision
from neuroshard_trainer.ranks.precision import set_matmul_precision
from torch import Tensor


class MatrixCall:
    """One layer, in the arithmetic that the trainer has by default: TF32 on a GPU that has it."""

    def __init__(self, sample: MatrixSample, *, device: torch.device) -> None:
        set_matmul_precision(Precision.TF32)
        generator = torch.Generator(device).manual_seed(0)
        inputs, weights = (
            torch.randn(rows, sample.num_inputs, generator=generator, device=device, requires_grad=True)
            for rows in (sample.batch_size, sample.num_outputs)
        )
        self._inputs, self._weights = inputs, weights

    def forward(self, number: int) -> Tensor:  # noqa: ARG002 - all calls are alike
        """Return the outputs [samples, outputs]."""
        return torch.nn.functional.linear(self._inputs, self._weights)

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:
        """Compute the gradients of inputs and weights."""
        torch.autograd.grad(pooled, (self._inputs, self._weights), gradient)

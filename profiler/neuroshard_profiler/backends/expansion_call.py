"""Copies of pooled embeddings to repeated lists, as the trainer makes them for a group. Times nothing."""

from collections.abc import Sequence

import torch
from neuroshard_api.documents.records import ExpansionSample
from neuroshard_trainer.model.expansion import copied
from torch import Tensor


class ExpansionCall:
    """Features side by side in one tensor, as exchanges return them and take their gradients."""

    def __init__(self, sample: ExpansionSample, *, device: torch.device) -> None:
        shape = (sample.batch_size, sample.num_features * sample.embedding_dim)
        self._pooled = [
            part.requires_grad_() for part in torch.zeros(shape, device=device).chunk(sample.num_features, dim=1)
        ]
        self._gradients = torch.ones(shape, device=device).chunk(sample.num_features, dim=1)
        places = torch.arange(sample.batch_size, device=device)
        self._first_samples = places - places % sample.factor
        self._expanded: Sequence[Tensor] = ()
        """Of the last forward call, until its backward call."""

    def forward(self, number: int) -> Tensor:  # noqa: ARG002 - all calls are alike
        """Copy all features, and return the last [samples, columns]."""
        self._expanded = copied(self._pooled, self._first_samples)
        return self._expanded[-1]

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:  # noqa: ARG002 - all features have their own
        """Sum the gradients of the copies up."""
        torch.autograd.grad(self._expanded, self._pooled, self._gradients)

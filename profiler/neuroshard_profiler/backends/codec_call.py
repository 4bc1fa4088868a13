"""The trainer's codecs of pooled embeddings, without the scale that the trainer gives gradients. Times nothing."""

import torch
from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.records import CodecSample
from neuroshard_trainer.communication.codecs import wire_codecs
from torch import Tensor


class CodecCall:
    """One codec, whose forward call encodes and whose backward call decodes."""

    def __init__(self, sample: CodecSample, *, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        shape = (sample.batch_size, sample.num_columns)
        self._values = torch.randn(shape, generator=generator, device=device)
        self._codec, _ = wire_codecs(WireTypes(forward=sample.type, backward=sample.type), device)
        self._context = self._codec.create_context()

    def forward(self, number: int) -> Tensor:  # noqa: ARG002 - all calls are alike
        """Return the encoded values."""
        return self._codec.encode(self._values, self._context)

    def backward(self, pooled: Tensor, gradient: Tensor) -> None:  # noqa: ARG002 - a call's signature
        """Decode what forward has returned."""
        self._codec.decode(pooled, self._context)

"""A codec that sends the largest values of each group alone: what WireType's TOP32, TOP16, and TOP8 are.

    [k] bytes of positions in the group | [2 k] bytes of values in BF16        of every group of 128 values

A group has consecutive columns of a sample, and of the next one where a device's columns are no multiple of it. What is
not sent arrives as 0. TorchRec asks for the size of a message before it is made: so the number of values is fixed, and
not their threshold. Source of the method: Gupta and others, "Training Recommender Systems at Scale", KDD 2021, arXiv
2010.08899.
"""

from typing import Protocol

import torch
from fbgemm_gpu.quantize_comm import QuantizationContext
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType


class Codec(Protocol):
    """What TorchRec asks of a codec."""

    @property
    def quantized_dtype(self) -> torch.dtype:
        """Type of the tensors that travel."""
        ...

    def create_context(self) -> QuantizationContext | None:
        """Return the context of one exchange."""
        ...

    def padded_size(
        self, input_tensor: torch.Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: QuantizationContext
    ) -> tuple[int, int]:
        """Return the columns of this rank with what fills up whole groups, and that filling."""
        ...

    def calc_quantized_size(self, input_len: int, ctx: QuantizationContext | None = None) -> int:
        """Return the number of elements that ``input_len`` values are encoded to."""
        ...

    def encode(self, input_tensor: torch.Tensor, ctx: QuantizationContext | None = None) -> torch.Tensor:
        """Return the encoded tensor."""
        ...

    def decode(self, input_tensor: torch.Tensor, ctx: QuantizationContext | None = None) -> torch.Tensor:
        """Return the values of what was received."""
        ...


class LargestValues:
    """The codec of a type that sends some values of each group.

    Args:
        kind: whose format has kept values.
    """

    quantized_dtype = torch.uint8

    def __init__(self, kind: WireType) -> None:
        form = WIRE_FORMATS[kind]
        assert form.kept_values is not None, "a type of largest values"
        self.wire_type = kind
        self._form = form
        self._kept = form.kept_values

    def create_context(self) -> QuantizationContext:
        """Return the context of one exchange: none of it is used."""
        return QuantizationContext()

    def padded_size(
        self,
        input_tensor: torch.Tensor,
        dim_per_rank: list[int],  # noqa: ARG002 - TorchRec's signature
        my_rank: int,  # noqa: ARG002
        qcomm_ctx: QuantizationContext,  # noqa: ARG002
    ) -> tuple[int, int]:
        """Return the columns as they are: the samples of a device fill whole groups."""
        return input_tensor.shape[-1], 0

    def calc_quantized_size(self, input_len: int, ctx: QuantizationContext | None = None) -> int:  # noqa: ARG002
        """Return the bytes of this many values."""
        assert input_len % self._form.group_values == 0, "batch sizes that do not fill groups are refused"
        return input_len // self._form.group_values * self._form.group_bytes

    def encode(self, input_tensor: torch.Tensor, ctx: QuantizationContext | None = None) -> torch.Tensor:  # noqa: ARG002
        """Return positions and values of the largest; what is not a number is larger than any."""
        groups = input_tensor.reshape(-1, self._form.group_values)
        places = groups.abs().topk(self._kept, dim=1, sorted=False).indices
        values = groups.gather(1, places).to(torch.bfloat16)
        return torch.cat((places.to(torch.uint8), values.view(torch.uint8)), dim=1).view(-1)

    def decode(self, input_tensor: torch.Tensor, ctx: QuantizationContext | None = None) -> torch.Tensor:  # noqa: ARG002
        """Return the values, and 0 for those that were not sent."""
        places, values = torch.split(input_tensor.view(-1, self._form.group_bytes), [self._kept, 2 * self._kept], dim=1)
        groups = torch.zeros((len(places), self._form.group_values), device=places.device)
        groups.scatter_(1, places.long(), values.contiguous().view(torch.bfloat16).float())
        return groups.view(-1)

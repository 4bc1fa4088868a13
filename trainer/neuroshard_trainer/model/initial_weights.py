"""First weights of tables, which are the same under every plan and number of processes.

A weight is a function of the seed and of its table, row, and column: the output of SplitMix64 (Steele, Lea, and Flood,
OOPSLA 2014) at position row * width + column of the table's stream. So each shard draws its weights alone, on a CPU and
on a GPU the same ones.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from neuroshard_trainer.dense.optimizers import replicated_weights
from neuroshard_trainer.model.grouped_model import common_name
from neuroshard_trainer.model.variant_model import own_name, variant_of

_INCREMENT = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_BITS = 24
"""Of a draw's first bits; a float holds them exactly."""
_DRAWN_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 24}
"""Weights: as many as a core's cache holds, or as fill a GPU."""


def set_initial_weights(model: nn.Module, *, seed: int, seeds: Mapping[str, int] | None = None) -> None:
    """Fill the tables with weights evenly distributed over TorchRec's initial range, +-1 / sqrt(rows).

    Args:
        model: wrapped in DistributedModelParallel.
        seed: equal seeds give equal weights.
        seeds: of variants, which have the weights of their own jobs. If unset: there are none.
    """
    with torch.no_grad():
        for name, part, (first_row, first_column), (rows, width) in _parts(model):
            variant = variant_of(name) if seeds else None
            own = (seed, common_name(name)) if variant is None else ((seeds or {})[variant], own_name(name))
            stream = _stream(*own)
            columns = torch.arange(first_column, first_column + part.shape[1], device=part.device)
            step = max(1, _DRAWN_AT_ONCE[part.device.type] // part.shape[1])
            for start in range(0, part.shape[0], step):
                block = part[start : start + step]
                row = torch.arange(first_row + start, first_row + start + len(block), device=part.device)
                block.copy_(_uniform(row[:, None] * width + columns, stream) / math.sqrt(rows))


def _stream(seed: int, name: str) -> int:
    """Return the first state of a table's stream, a signed integer of 64 bits."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _uniform(position: torch.Tensor, stream: int) -> torch.Tensor:
    """Return numbers in (-1, 1), symmetric about 0, at positions of a stream; the positions are overwritten."""
    state = position.mul_(_INCREMENT).add_(stream)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        # A signed shift fills with the sign; the mask makes it an unsigned one.
        shifted = (state >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        state.bitwise_xor_(shifted).mul_(multiplier)
    # The last mixing of SplitMix64, by a shift of 31, does not reach these bits.
    return (state >> (64 - _BITS)).to(torch.float32).add_(0.5).mul_(2.0 ** (1 - _BITS))


def _parts(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, tuple[int, int], tuple[int, int]]]:
    """Yield each table's local parts: name, weights, first row and column, and rows and columns of the table."""
    for name, found in model.state_dict().items():
        if isinstance(found, ShardedTensor):
            rows, width = found.metadata().size
            for shard in found.local_shards():
                row, column = shard.metadata.shard_offsets
                yield name, shard.tensor, (row, column), (rows, width)
    for name, weight in replicated_weights(model).items():
        rows, width = weight.shape
        yield name, weight.detach().as_subclass(torch.Tensor), (0, 0), (rows, width)

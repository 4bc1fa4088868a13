"""Weights that are the same under every plan: each from its table, row, and column, whatever shard it is in."""

import math
import zlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from neuroshard_trainer.dense.optimizers import replicated_weights
from neuroshard_trainer.model.grouped_model import common_name

_ROWS = 65536  # set at once
_MASK = (1 << 24) - 1  # bits that a float holds exactly
_PRIMES = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)  # of xxHash's mixing; products stay below 2^63


def set_equal_weights(model: nn.Module) -> None:
    """Fill the tables with numbers spread evenly over TorchRec's initial range, +-1 / sqrt(rows).

    The copies of a data_parallel table are equal on all ranks.

    Args:
        model: wrapped in DistributedModelParallel.
    """
    with torch.no_grad():
        for name, part, first, rows in _parts(model):
            key = zlib.crc32(common_name(name).encode())
            columns = torch.arange(first[1], first[1] + part.shape[1], device=part.device)
            for start in range(0, part.shape[0], _ROWS):
                block = part[start : start + _ROWS]
                row = torch.arange(first[0] + start, first[0] + start + len(block), device=part.device)
                mixed = (row[:, None] % _MASK) * _PRIMES[0] + columns * _PRIMES[1] + key
                mixed = ((mixed ^ (mixed >> 15)) & 0x7FFFFFFF) * _PRIMES[2]
                share = ((mixed >> 20) & _MASK).to(torch.float32) / _MASK
                block.copy_((2 * share - 1) / math.sqrt(rows))


def _parts(model: nn.Module) -> Iterator[tuple[str, torch.Tensor, tuple[int, int], int]]:
    """Yield each table's local parts: name, weights, first row and column, and rows of the table."""
    for name, found in model.state_dict().items():
        if isinstance(found, ShardedTensor):
            for shard in found.local_shards():
                row, column = shard.metadata.shard_offsets
                yield name, shard.tensor, (row, column), found.size(0)
    for name, weight in replicated_weights(model).items():
        yield name, weight.detach().as_subclass(torch.Tensor), (0, 0), weight.shape[0]

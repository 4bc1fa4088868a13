"""The interaction of Wukong (Zhang et al., 2024, arXiv 2403.02545): stacked factorization machines.

Each layer turns the vectors of a sample into others of the same width, some of them from dot products of pairs and the
rest as linear combinations, so that layer i sees interactions of up to 2 ** i features. Each layer is a module, so that
it can be sharded and recomputed alone. The projection of the dot products is a weight; the paper also has a variant
that computes it from the inputs.
"""

from itertools import pairwise

import torch
from neuroshard_api.job.model import WukongLayers
from torch import nn


class WukongLayer(nn.Module):
    """norm(concat(MLP(norm(X (X^T P))), C X) + R X), for the vectors X of a sample, one per row.

    P has shape (inputs, rank), C (compressed, inputs), and R (outputs, inputs); R is the identity where the layer
    returns as many vectors as it takes. X (X^T P) is (X X^T) P, the dot products of all pairs of vectors, without the
    square matrix of them.

    Args:
        num_inputs: vectors of a sample.
        width: columns of each vector.
        size: of the layer.
    """

    def __init__(self, num_inputs: int, width: int, size: WukongLayers) -> None:
        super().__init__()
        self._width = width
        self.projection = _weight(num_inputs, size.low_rank_dim)
        self.combination = _weight(size.num_interactions, num_inputs)
        is_same = num_inputs == size.num_outputs
        self.shortcut = None if is_same else _weight(size.num_outputs, num_inputs)
        flat = num_inputs * size.low_rank_dim
        self.products_norm = nn.LayerNorm(flat)
        self.mlp = _mlp([flat, *size.layer_sizes, size.num_interactions * width])
        self.output_norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (samples, outputs, width) for shape (samples, inputs, width)."""
        products = x @ (x.transpose(1, 2) @ self.projection)
        factored = self.mlp(self.products_norm(products.flatten(1))).unflatten(1, (-1, self._width))
        kept = x if self.shortcut is None else self.shortcut @ x
        found: torch.Tensor = self.output_norm(torch.cat([factored, self.combination @ x], dim=1) + kept)
        return found


class Wukong(nn.Module):
    """Layers, one after the other."""

    def __init__(self, num_inputs: int, width: int, size: WukongLayers) -> None:
        super().__init__()
        counts = [num_inputs] + [size.num_outputs] * (size.num_layers - 1)
        self.layers = nn.ModuleList(WukongLayer(count, width, size) for count in counts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (samples, outputs, width) for shape (samples, inputs, width)."""
        for layer in self.layers:
            x = layer(x)
        return x


def _weight(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(rows, columns)))


def _mlp(sizes: list[int]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])

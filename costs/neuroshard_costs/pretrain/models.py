"""The cost networks in torch, for training; neuroshard_costs.networks is the same in NumPy and describes them."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from neuroshard_costs.features import COMMUNICATION_FEATURES, COMPUTE_FEATURES, Float32Array
from neuroshard_costs.networks import MAX_LOG, NUM_LOAD_TERMS

_TRAFFIC = (
    ("log2_lookups", "log2_row_sectors"),
    ("log2_lookups", "log2_output_sectors"),
    ("log2_unique_rows", "log2_row_bursts"),
    ("log2_unique_rows", "log2_output_bursts"),
    ("log2_filled_bag_bytes",),
    ("log2_lookups",),
    ("log2_unique_rows",),
    ("log2_bags",),
    ("log2_sorted_row_bytes",),
    ("log2_sorted_state_bytes",),
    ("log2_rows_missing_16_mib", "log2_row_bursts"),
    ("log2_rows_missing_64_mib", "log2_row_bursts"),
)
"""Features whose product is a count of sectors, bursts, bytes or rows; a demand begins as that many bytes at 1 TB/s."""

_TRANSFERS = (
    ("log2_intra_node_transfer_seconds", 1e3),
    ("log2_inter_node_transfer_seconds", 1e3),
    ("log2_intra_node_latencies_seconds", 1e3),
    ("log2_inter_node_latencies_seconds", 1e3),
    ("log2_total_bytes", 1e-9),
)
"""What each coefficient of an all-to-all begins as a sum of, with the factor to milliseconds."""

_LEAST_STD = 1e-3  # a feature that hardly varies in training must not explode outside


class Mlp(nn.Module):
    """Dense layers with ReLU next to a linear path; z-scores its inputs and returns exponentials."""

    def __init__(self, mean: Tensor, std: Tensor, widths: Sequence[int]) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        sizes = [len(mean), *widths]
        self.hidden = nn.ModuleList(nn.Linear(width, following) for width, following in pairwise(sizes[:-1]))
        self.last = nn.Linear(sizes[-2], sizes[-1])
        self.around = nn.Linear(len(mean), widths[-1], bias=False)
        nn.init.zeros_(self.around.weight)
        nn.init.normal_(self.last.weight, std=0.02)
        nn.init.zeros_(self.last.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return positive outputs [n, widths[-1]]."""
        scaled = (features - self.mean) / self.std
        hidden = scaled
        for layer in self.hidden:
            hidden = torch.relu(layer(hidden))
        return torch.exp((self.last(hidden) + self.around(scaled)).clamp(-MAX_LOG, MAX_LOG))

    def begin_with(self, products: Sequence[tuple[Sequence[int], float]]) -> None:
        """Let each output begin as a factor times the product of some features, whose inputs are binary logarithms.

        Costs are near such products, so training begins near the truth instead of at chance.
        """
        with torch.no_grad():
            for output, (columns, factor) in enumerate(products):
                self.around.weight[output, columns] += math.log(2.0) * self.std[columns]
                self.last.bias[output] += math.log(2.0) * self.mean[columns].sum() + math.log(factor)

    def export(self) -> dict[str, Float32Array]:
        """Return the arrays that networks._Mlp reads."""
        weights = {"mean": _array(self.mean), "std": _array(self.std), "around": _array(self.around.weight.T)}
        for index, layer in enumerate((*self.hidden, self.last)):
            state = layer.state_dict()
            weights[f"layer{index}.weight"] = _array(state["weight"].T)
            weights[f"layer{index}.bias"] = _array(state["bias"])
        return weights


class ComputeModel(nn.Module):
    """Trains a networks.ComputeNetwork."""

    def __init__(
        self, mean: Tensor, std: Tensor, *, hidden: Sequence[int], num_demands: int, num_units: int, floor_ms: Tensor
    ) -> None:
        super().__init__()
        self.shard_mlp = Mlp(mean, std, (*hidden, num_demands))
        self.num_units = num_units
        self.shard_mlp.begin_with(
            [
                ([COMPUTE_FEATURES.index(name) for name in _TRAFFIC[demand % len(_TRAFFIC)]], 1e-9)
                for demand in range(num_demands)
            ]
        )
        # Raw values; softplus keeps the weights non-negative.
        self.head_in = nn.Parameter(torch.empty(num_demands, 2 * num_units + 2).uniform_(-4.0, 0.0))
        self.first_bias = nn.Parameter(torch.full((num_units,), -5.0))
        self.second_bias = nn.Parameter(torch.zeros(num_units))
        self.floor = nn.Parameter(torch.log(torch.expm1(floor_ms)))
        self.head_out = nn.Parameter(torch.empty(num_units, 2).uniform_(-4.0, -1.0))
        self.lane_share = nn.Parameter(torch.empty(num_demands).uniform_(-3.0, 1.0))

    def forward(self, features: Tensor, set_index: Tensor, num_sets: int, warp_share: Tensor) -> Tensor:
        """Return [num_sets, 2] milliseconds of one call; every set holds a shard. ``warp_share`` is [num_sets]."""
        demands = self.shard_mlp(features)
        sums = torch.zeros(num_sets, demands.shape[1]).index_add_(0, set_index, demands)
        weights = self._head()
        sums = sums * (1 - weights["lane_share"] * (1 - warp_share[:, None]))
        pieces = sums @ weights["head_in"] + weights["head_bias"]
        units = torch.maximum(pieces[:, : self.num_units], pieces[:, self.num_units : -2])
        times: Tensor = units @ weights["head_out"] + pieces[:, -2:]
        return times

    def _head(self) -> dict[str, Tensor]:
        positive = nn.functional.softplus
        bias = torch.cat((positive(self.first_bias), self.second_bias, positive(self.floor)))
        return {
            "head_in": positive(self.head_in),
            "head_bias": bias,
            "head_out": positive(self.head_out),
            "lane_share": torch.sigmoid(self.lane_share),
        }

    def export(self) -> dict[str, Float32Array]:
        """Return the arrays that networks.ComputeNetwork reads."""
        shard = {f"shard.{name}": array for name, array in self.shard_mlp.export().items()}
        return shard | {name: _array(tensor) for name, tensor in self._head().items()}


class CommunicationModel(nn.Module):
    """Trains a networks.CommunicationNetwork."""

    def __init__(self, mean: Tensor, std: Tensor, *, hidden: Sequence[int]) -> None:
        super().__init__()
        self.mlp = Mlp(mean, std, (*hidden, NUM_LOAD_TERMS * len(_TRANSFERS)))
        self.mlp.begin_with(
            [
                ([COMMUNICATION_FEATURES.index(name)], factor)
                for _ in range(NUM_LOAD_TERMS)
                for name, factor in _TRANSFERS
            ]
        )

    def forward(self, features: Tensor, terms: Tensor) -> Tensor:
        """Return [n] milliseconds. ``terms`` [n, 3]: 1 and networks.load_terms of the largest device's load."""
        coefficients = self.mlp(features).unflatten(1, (NUM_LOAD_TERMS, -1)).sum(dim=2)
        times: Tensor = (coefficients * terms).sum(dim=1)
        return times

    def export(self) -> dict[str, Float32Array]:
        """Return the arrays that networks.CommunicationNetwork reads."""
        return self.mlp.export()


def moments(features: NDArray[np.floating]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each feature."""
    mean, std = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(np.maximum(std, _LEAST_STD).astype(np.float32))


def _array(tensor: Tensor) -> Float32Array:
    return np.ascontiguousarray(tensor.detach().numpy(), dtype=np.float32)

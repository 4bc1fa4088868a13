"""The cross network of DCNv2, layer by layer: each layer is a module, so that it can be sharded and recomputed alone.

Values, first weights, and names in state dicts are those of TorchRec's LowRankCrossNet, which keeps the weights of all
layers in one module.
"""

import re

import torch
from torch import nn
from torch.nn.functional import linear

_NAMES = {"up": "W_kernels", "down": "V_kernels", "bias": "bias"}
"""A layer's weights, and what LowRankCrossNet calls their lists."""
_OF_A_LAYER = re.compile(rf"layers\.(\d+)\.({'|'.join(_NAMES)})$")
_IN_A_LIST = re.compile(rf"({'|'.join(_NAMES.values())})\.(\d+)$")


class CrossLayer(nn.Module):
    """x0 * (W V x + b) + x; parameters of shapes W (columns, rank), V (rank, columns), and b (columns)."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.up = nn.Parameter(up)
        self.down = nn.Parameter(down)
        self.bias = nn.Parameter(torch.zeros(len(up)))

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return shape (samples, columns), from the network's input and the layer's."""
        return first * (linear(linear(x, self.down), self.up) + self.bias) + x


class CrossLayers(nn.Module):
    """Low-rank cross layers, one after the other."""

    def __init__(self, num_columns: int, num_layers: int, *, low_rank: int) -> None:
        super().__init__()
        # All of one kind before the next, as LowRankCrossNet draws them.
        up = [nn.init.xavier_normal_(torch.empty(num_columns, low_rank)) for _ in range(num_layers)]
        down = [nn.init.xavier_normal_(torch.empty(low_rank, num_columns)) for _ in range(num_layers)]
        self.layers = nn.ModuleList(CrossLayer(*weights) for weights in zip(up, down, strict=True))
        self.register_state_dict_post_hook(_to_lists)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_from_lists)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (samples, columns)."""
        first = x
        for layer in self.layers:
            x = layer(first, x)
        return x


def saved_name(name: str) -> str:
    """Return the name that a parameter has in state dicts and checkpoints."""
    return _OF_A_LAYER.sub(lambda found: f"{_NAMES[found[2]]}.{found[1]}", name)


def _to_lists(_module: nn.Module, state: dict[str, torch.Tensor], prefix: str, *_: object) -> None:
    for name in [each for each in state if each.startswith(prefix)]:
        state[prefix + saved_name(name.removeprefix(prefix))] = state.pop(name)


def _from_lists(_module: nn.Module, state: dict[str, torch.Tensor], prefix: str, *_: object) -> None:
    own = {kept: name for name, kept in _NAMES.items()}
    for name in [each for each in state if each.startswith(prefix)]:
        found = _IN_A_LIST.fullmatch(name.removeprefix(prefix))
        if found is not None:
            state[f"{prefix}layers.{found[2]}.{own[found[1]]}"] = state.pop(name)

"""The cross network of DCNv2, layer by layer: each layer is a module, so that it can be sharded and recomputed alone.

Values, first weights, and names in state dicts are those of TorchRec's LowRankCrossNet, which keeps the weights of all
layers in one module.

The first layer multiplies the features side by side. The part of features whose lists repeat is the same for all
samples of a list, so that it is multiplied once per list, and copied behind the product:

    x V'  =  x[others] V[others]'  +  copies of (distinct lists V[group]')
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import linear

_NAMES = {"up": "W_kernels", "down": "V_kernels", "bias": "bias"}
"""A layer's weights, and what LowRankCrossNet calls their lists."""
_OF_A_LAYER = re.compile(rf"layers\.(\d+)\.({'|'.join(_NAMES)})$")
_IN_A_LIST = re.compile(rf"({'|'.join(_NAMES.values())})\.(\d+)$")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of the network's input are of what; each is in one place."""

    others: tuple[slice, ...]
    """Columns that are multiplied for every sample."""
    groups: tuple[tuple[slice, ...], ...]
    """By group, the columns of its features in the order of its distinct lists' columns."""


@dataclass(frozen=True, slots=True)
class DistinctInputs:
    """Distinct lists of groups of features next to the copies that the network's input has of them."""

    columns: Columns
    pooled: Sequence[torch.Tensor]
    """By group, [lists, columns]."""
    rows: Sequence[torch.Tensor]
    """By group, [samples] the list of each sample."""


class CrossLayer(nn.Module):
    """x0 * (W V x + b) + x; parameters of shapes W (columns, rank), V (rank, columns), and b (columns)."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.up = nn.Parameter(up)
        self.down = nn.Parameter(down)
        self.bias = nn.Parameter(torch.zeros(len(up)))

    def forward(self, first: torch.Tensor, x: torch.Tensor, distinct: DistinctInputs | None = None) -> torch.Tensor:
        """Return shape (samples, columns), from the network's input and the layer's.

        ``distinct`` are the lists of which the layer's input has copies.
        """
        product = linear(x, self.down) if distinct is None else _product(x, self.down, distinct)
        return first * (linear(product, self.up) + self.bias) + x


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

    def forward(self, x: torch.Tensor, distinct: DistinctInputs | None = None) -> torch.Tensor:
        """Return shape (samples, columns). ``distinct`` are the lists of which ``x`` has copies."""
        first = x
        for layer in self.layers:
            x = layer(first, x, distinct)
            distinct = None
        return x


def _product(x: torch.Tensor, down: torch.Tensor, distinct: DistinctInputs) -> torch.Tensor:
    """Return [samples, rank], in the type that autocast gives matrix products."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    pooled = (each.to(dtype) for each in distinct.pooled)
    found: torch.Tensor = _Product.apply(x.to(dtype), down.to(dtype), distinct.columns, *distinct.rows, *pooled)
    return found


class _Product(torch.autograd.Function):
    """linear(x, down), of whose columns those of groups are multiplied once per distinct list."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: torch.Tensor, down: torch.Tensor, columns: Columns, *lists: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(x, down, *lists)
        ctx.columns = columns  # type: ignore[attr-defined] # torch's place for such values
        product = x.new_zeros((len(x), len(down)))
        for place in columns.others:
            product.addmm_(x[:, place], down[:, place].T)
        for places, rows, pooled in _groups(columns, lists):
            product += (pooled @ _side_by_side(down, places).T).index_select(0, rows)
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, down, *lists = ctx.saved_tensors  # type: ignore[attr-defined] # torch's
        columns: Columns = ctx.columns  # type: ignore[attr-defined] # see forward
        of_x, of_down, of_pooled = torch.empty_like(x), torch.empty_like(down), []
        for place in columns.others:
            torch.mm(gradient, down[:, place], out=of_x[:, place])
            torch.mm(gradient.T, x[:, place], out=of_down[:, place])
        for places, rows, pooled in _groups(columns, lists):
            sums = gradient.new_zeros((len(pooled), len(down))).index_add_(0, rows, gradient)
            of_pooled.append(sums @ _side_by_side(down, places))
            parts = torch.split(sums.T @ pooled, [place.stop - place.start for place in places], dim=1)
            for place, part in zip(places, parts, strict=True):
                of_x[:, place] = 0
                of_down[:, place] = part
        return (of_x, of_down, None, *(None for _ in of_pooled), *of_pooled)


def _groups(
    columns: Columns, lists: Sequence[torch.Tensor]
) -> "zip[tuple[tuple[slice, ...], torch.Tensor, torch.Tensor]]":
    """Return the columns, rows, and distinct lists of each group."""
    count = len(columns.groups)
    return zip(columns.groups, lists[:count], lists[count:], strict=True)


def _side_by_side(matrix: torch.Tensor, places: Sequence[slice]) -> torch.Tensor:
    """Return columns of a matrix; a copy where they are in several places."""
    parts = [matrix[:, place] for place in places]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


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

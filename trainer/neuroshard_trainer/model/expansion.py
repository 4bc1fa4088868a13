"""Pooled embeddings of batches without repeated lists, copied to the samples that repeat a list.

A module of its own, so that the copies can be timed: training on all lists has no such part of the step.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable


class Expansion(nn.Module):
    """Copies pooled embeddings, or what towers make of them; the gradient of a list is the sum over its copies.

    Args:
        features: names of the model's features, or of the results of towers over features of one group.
        groups: features of each group, in the order of the batches' first samples. A feature may be in none.
    """

    def __init__(self, features: Sequence[str], groups: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self._features = tuple(features)
        self._groups = [tuple(name for name in features if name in set(names)) for names in groups]

    def nodes(self, expanded: Mapping[str, object]) -> Iterable[torch.autograd.graph.Node]:
        """Return the nodes that sum up the gradients of `forward`'s result: one of each group."""
        for names in self._groups:
            copies = expanded[names[0]]
            # TorchRec's pipeline traces the model once, with placeholders.
            if isinstance(copies, torch.Tensor) and copies.grad_fn is not None:
                yield copies.grad_fn

    def forward(self, pooled: Mapping[str, torch.Tensor], first_samples: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return [samples, columns] of each feature; of those in no group as they are.

        Args:
            pooled: [lists, columns] by feature.
            first_samples: [groups, samples] the position of each sample's list among those of its group's features.
        """
        # By name, for TorchRec's pipeline traces the model with placeholders, which know no keys.
        expanded = {name: pooled[name] for name in self._features}
        for group, names in enumerate(self._groups):
            copies = copied([pooled[name] for name in names], first_samples[group])
            expanded |= {name: copies[number] for number, name in enumerate(names)}
        return expanded


class _Copies(torch.autograd.Function):
    """Copies rows of several features; sums the gradients of the copies up over all columns side by side.

    A sum by row goes through rows one after the other on a CPU, so that few wide rows take less than many narrow ones.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, rows: torch.Tensor, *pooled: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(rows)
        ctx.num_rows = pooled[0].shape[0]  # type: ignore[attr-defined] # torch's place for such values
        return tuple(each.index_select(0, rows) for each in pooled)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (rows,) = ctx.saved_tensors  # type: ignore[attr-defined] # torch's
        joined = torch.cat(gradients, dim=1) if len(gradients) > 1 else gradients[0]
        sums = joined.new_zeros((ctx.num_rows, joined.shape[1]))  # type: ignore[attr-defined] # see forward
        sums.index_add_(0, rows, joined)
        return (None, *torch.split(sums, [each.shape[1] for each in gradients], dim=1))


@torch.fx.wrap
def copied(pooled: Sequence[torch.Tensor], rows: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return [samples, columns] of each feature, whose gradients are summed up together.

    Args:
        pooled: [lists, columns] of each feature, of one type.
        rows: [samples] the list of each sample.
    """
    if len(pooled) == 1:  # nothing is next to it, and torch's own needs no Python on its way back
        return (pooled[0].index_select(0, rows),)
    copies: tuple[torch.Tensor, ...] = _Copies.apply(rows, *pooled)
    return copies

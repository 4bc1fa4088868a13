"""Pooled embeddings of batches without repeated lists, copied to the samples that repeat a list.

A module of its own, so that the copies can be timed: training on all lists has no such part of the step.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn


class Expansion(nn.Module):
    """Copies pooled embeddings; the gradient of a list is the sum over its copies.

    Args:
        features: of the model.
        groups: features of each group, in the order of the batches' first samples. A feature may be in none.
    """

    def __init__(self, features: Sequence[str], groups: Sequence[Sequence[str]]) -> None:
        super().__init__()
        group_of = {name: group for group, names in enumerate(groups) for name in names}
        self._groups = [(name, group_of.get(name)) for name in features]

    @property
    def expanded(self) -> list[str]:
        """The features in groups."""
        return [name for name, group in self._groups if group is not None]

    def forward(self, pooled: Mapping[str, torch.Tensor], first_samples: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return [samples, columns] of each feature; of those in no group as they are.

        Args:
            pooled: [lists, columns] by feature.
            first_samples: [groups, samples] the position of each sample's list among those of its group's features.
        """
        # By name, for TorchRec's pipeline traces the model with placeholders, which know no keys.
        return {
            name: pooled[name] if group is None else pooled[name].index_select(0, first_samples[group])
            for name, group in self._groups
        }

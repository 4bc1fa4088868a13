"""What is fitted: the models bound to their samples."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neuroshard_costs.features import communication_features, compute_features
from neuroshard_costs.networks import load_terms
from neuroshard_costs.pretrain.datasets import CommunicationSamples, ComputeSamples
from neuroshard_costs.pretrain.models import CommunicationModel, ComputeModel, moments
from neuroshard_costs.shards import IndexArray
from neuroshard_costs.simulator.compute import warp_share


class ComputeTask:
    """Forward and backward time of sets of shards."""

    def __init__(
        self,
        samples: ComputeSamples,
        train: IndexArray,
        *,
        hidden: Sequence[int],
        num_demands: int,
        num_units: int,
    ) -> None:
        features = compute_features(samples.shards).astype(np.float32)
        widest = np.maximum.reduceat(
            samples.shards.num_columns, np.searchsorted(samples.set_index, np.arange(len(samples)))
        )
        self._warp_share = torch.from_numpy(warp_share(widest).astype(np.float32))
        self._sizes = np.bincount(samples.set_index, minlength=len(samples))
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._features = torch.from_numpy(features)
        self.targets_ms = torch.from_numpy(samples.times_ms.astype(np.float32))
        self.model = ComputeModel(
            *moments(features[self._shards_of(train)]),
            hidden=hidden,
            num_demands=num_demands,
            num_units=num_units,
            floor_ms=self.targets_ms[torch.from_numpy(train)].amin(dim=0),
        )

    def predict(self, samples: IndexArray) -> Tensor:
        """Return [samples, 2] milliseconds."""
        set_index = np.repeat(np.arange(len(samples)), self._sizes[samples])
        shards = torch.from_numpy(self._shards_of(samples))
        share = self._warp_share[torch.from_numpy(samples)]
        times: Tensor = self.model(self._features[shards], torch.from_numpy(set_index), len(samples), share)
        return times

    def _shards_of(self, samples: IndexArray) -> IndexArray:
        sizes = self._sizes[samples]
        first = np.cumsum(sizes) - sizes
        return np.repeat(self._starts[samples] - first, sizes) + np.arange(sizes.sum())


class CommunicationTask:
    """Time of all-to-alls in one direction."""

    def __init__(
        self, samples: CommunicationSamples, train: IndexArray, *, direction: int, hidden: Sequence[int]
    ) -> None:
        features = communication_features(samples.collectives).astype(np.float32)
        load = samples.max_dim_sum / samples.collectives.mean_dim_sum
        terms = np.stack((np.ones_like(load), *load_terms(load)), axis=1)
        self._features = torch.from_numpy(features)
        self._terms = torch.from_numpy(terms.astype(np.float32))
        self.targets_ms = torch.from_numpy(samples.times_ms[:, direction].astype(np.float32))
        self.model = CommunicationModel(*moments(features[train]), hidden=hidden)

    def predict(self, samples: IndexArray) -> Tensor:
        """Return [samples] milliseconds."""
        index = torch.from_numpy(samples)
        times: Tensor = self.model(self._features[index], self._terms[index])
        return times

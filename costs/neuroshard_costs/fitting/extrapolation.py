"""Errors of ways of fitting beyond what was fitted to: records of the most lookups, predicted by fits to the others.

A profile has as many records as its budget allows, so its calls are smaller than those of many plans: a device of a job
looks up all of its tables in one call. Where records are held out at random, a model that only interpolates shows a
low error, and plans ask for the error of larger calls.
"""

from collections.abc import Callable

import numpy as np

from neuroshard_costs.features import compute_features
from neuroshard_costs.fitting.fitted import FittedNetwork
from neuroshard_costs.networks import ComputeNetwork
from neuroshard_costs.pretrain.datasets import ComputeSamples
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.compute import warp_share

LARGEST_SHARE = 0.2
"""Share of the records that count as the largest."""


def extrapolation_error(samples: ComputeSamples, fit: Callable[[ComputeSamples], FittedNetwork]) -> float:
    """Return the mean relative error of the largest records under a fit to the others.

    Args:
        samples: all records.
        fit: fits a compute network.
    """
    lookups = np.bincount(samples.set_index, weights=samples.shards.lookups)
    order = np.argsort(lookups, kind="stable")
    num_largest = round(LARGEST_SHARE * len(samples))
    smaller, largest = (_part(samples, each) for each in (order[:-num_largest], order[-num_largest:]))
    predicted_ms = compute_ms(ComputeNetwork.from_weights(fit(smaller).weights), largest)
    return float(np.abs(predicted_ms / largest.times_ms - 1).mean())


def compute_ms(network: ComputeNetwork, samples: ComputeSamples) -> FloatArray:
    """Return [sets, 2] forward and backward milliseconds, as the network predicts them."""
    of_shards = network.demands(compute_features(samples.shards))
    demands = np.zeros((len(samples), network.num_demands))
    np.add.at(demands, samples.set_index, of_shards)
    widest = np.zeros(len(samples))
    np.maximum.at(widest, samples.set_index, samples.shards.num_columns)
    return network.times_ms(demands, warp_share(widest))


def _part(samples: ComputeSamples, sets: np.ndarray) -> ComputeSamples:
    """Return some sets, in the order in which they are among all."""
    kept = np.zeros(len(samples), dtype=np.bool_)
    kept[sets] = True
    of_kept = kept[samples.set_index]
    return ComputeSamples(
        shards=samples.shards.take(np.flatnonzero(of_kept)),
        set_index=(np.cumsum(kept) - 1)[samples.set_index[of_kept]],
        times_ms=samples.times_ms[kept],
        is_model_like=samples.is_model_like[kept],
    )

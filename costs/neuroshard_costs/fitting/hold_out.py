"""Errors of cost networks on samples they were not fitted to: figures for the manifest. Fits nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from neuroshard_api.documents.bundle import ErrorReport
from numpy.typing import NDArray

from neuroshard_costs.shards import FloatArray, IndexArray

_MAX_PAIRED = 4000  # samples whose order is compared pair by pair: tau is then known to about 0.01

_TRAIN_SHARE, _VALIDATION_SHARE = 0.8, 0.1  # the rest is held out


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Which samples serve what."""

    train: IndexArray
    validation: IndexArray
    hold_out: IndexArray

    @classmethod
    def of(cls, num_samples: int, seed: int) -> Self:
        """Draw 80 % to train on, 10 % to validate with and 10 % to hold out."""
        order = np.random.default_rng([seed, 2]).permutation(num_samples)
        first, second = round(_TRAIN_SHARE * num_samples), round((_TRAIN_SHARE + _VALIDATION_SHARE) * num_samples)
        return cls(
            train=np.sort(order[:first]), validation=np.sort(order[first:second]), hold_out=np.sort(order[second:])
        )


def error_report(true_ms: FloatArray, predicted_ms: FloatArray, groups: Mapping[str, NDArray[np.str_]]) -> ErrorReport:
    """Return the errors of one network.

    Args:
        true_ms: [n] or [n, outputs].
        predicted_ms: the same; every output counts as a sample of the averages, their sum is what is ranked.
        groups: by name of a grouping, the label [n] of each sample; labels that are empty strings are left out.
    """
    true_ms, predicted_ms = true_ms.reshape(len(true_ms), -1), predicted_ms.reshape(len(true_ms), -1)
    relative = np.abs(predicted_ms / true_ms - 1).mean(axis=1)
    by_group = {
        name: {str(label): float(relative[labels == label].mean()) for label in dict.fromkeys(np.sort(labels)) if label}
        for name, labels in groups.items()
    }
    return ErrorReport(
        num_samples=len(true_ms),
        mse_ms2=float(np.square(predicted_ms - true_ms).mean()),
        mape=float(relative.mean()),
        kendall_tau=kendall_tau(true_ms.sum(axis=1), predicted_ms.sum(axis=1)),
        mape_by=by_group,
    )


def kendall_tau(first: FloatArray, second: FloatArray) -> float:
    """Return the rank correlation tau-b of the first 4,000 pairs of values, -1 to 1; 0 where all values are equal."""
    first, second = first[:_MAX_PAIRED], second[:_MAX_PAIRED]
    upper = np.triu_indices(len(first), 1)
    order_first = np.sign(first[:, None] - first)[upper]
    order_second = np.sign(second[:, None] - second)[upper]
    pairs = np.sqrt(float(np.abs(order_first).sum()) * float(np.abs(order_second).sum()))
    return float(order_first @ order_second) / pairs if pairs else 0.0


def ranges(values: FloatArray | IndexArray, edges: tuple[int, ...]) -> NDArray[np.str_]:
    """Label each value by the range it is in: for the edges 1, 4, 9 ``"1-3"`` or ``"4-8"``.

    Edges are the first value of each range and one beyond the last, padded so that the labels sort.
    """
    width = len(str(edges[-1] - 1))
    names = [f"{low:0{width}}-{high - 1:0{width}}" for low, high in pairwise(edges)]
    position = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(names) - 1)
    return np.array(names)[position]

"""Errors of trained networks on held-out samples: figures for the manifest and a plot. Trains nothing."""

import io
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from neuroshard_api.bundle import ErrorReport
from numpy.typing import NDArray

from neuroshard_planner.costs.shards import FloatArray, IndexArray

_MAX_PAIRED = 4000  # samples whose order is compared pair by pair: tau is then known to about 0.01
_MAX_DOTS = 4000


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
    """Label each value by the range it lies in: for the edges 1, 4, 9 ``"1-3"`` or ``"4-8"``.

    Edges are the first value of each range and one beyond the last, padded so that the labels sort.
    """
    width = len(str(edges[-1] - 1))
    names = [f"{low:0{width}}-{high - 1:0{width}}" for low, high in pairwise(edges)]
    position = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(names) - 1)
    return np.array(names)[position]


def plot(samples: Mapping[str, tuple[FloatArray, FloatArray]], *, title: str) -> bytes:
    """Return a PNG: predicted over true milliseconds, one panel per name in ``samples`` (true, predicted)."""
    figure = Figure(figsize=(3.6 * len(samples), 3.6), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, pair) in zip(figure.subplots(1, len(samples)), samples.items(), strict=True):
        true_ms, predicted_ms = (values.ravel()[:_MAX_DOTS] for values in pair)
        ends = [true_ms.min(), true_ms.max()]
        axes.plot(ends, ends, color="0.6", linewidth=1)
        axes.scatter(true_ms, predicted_ms, s=2, alpha=0.4, linewidths=0)
        axes.set(xscale="log", yscale="log", xlabel="true ms", ylabel="predicted ms", title=name)
    figure.suptitle(title, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()

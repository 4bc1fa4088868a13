"""A plot of trained networks' errors on held-out samples. Trains nothing."""

import io
from collections.abc import Mapping

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from neuroshard_costs.shards import FloatArray

_MAX_DOTS = 4000


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

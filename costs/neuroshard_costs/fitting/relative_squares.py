"""Linear fits of least relative error whose coefficients are not below 0, as those of times."""

import numpy as np

from neuroshard_costs.shards import FloatArray


def non_negative(design: FloatArray, times_ms: FloatArray) -> list[float]:
    """Return the coefficients [k] of times [n], each above 0, in the columns of the design [n, k]."""
    from scipy.optimize import nnls  # noqa: PLC0415 - scipy, only where needed

    relative = design / times_ms[:, None]
    scale = relative.max(axis=0)
    coefficients: list[float] = (nnls(relative / scale, np.ones(len(times_ms)))[0] / scale).tolist()
    return coefficients


def fixed_and_each(units: FloatArray, times_ms: FloatArray) -> tuple[float, float]:
    """Return the fixed time, and the time of each unit on top, of times [n] of these units [n]."""
    fixed, each = non_negative(np.stack((np.ones(len(units)), units), axis=1), times_ms)
    return fixed, each

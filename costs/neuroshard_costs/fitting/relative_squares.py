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

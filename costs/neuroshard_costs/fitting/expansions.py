"""Times of features, rows, and bytes that are copied to repeated lists, from records of copies. Measures nothing."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from neuroshard_api.bundle import Expansion
from neuroshard_api.records import ProfileRecord

from neuroshard_costs.shards import FloatArray

MIN_RECORDS = 6
"""Fewest records that are fitted: three numbers from fewer would follow the noise."""
FP32_BYTES = 4


def fitted_expansion(records: Sequence[ProfileRecord]) -> Expansion | None:
    """Return the least relative squares over the records of copies. None: there are fewer than MIN_RECORDS."""
    found = [(each.expansion, each.forward_ms, each.backward_ms) for each in records if each.is_usable]
    measured = [(sample, forward, backward) for sample, forward, backward in found if sample and forward and backward]
    if len(measured) < MIN_RECORDS:
        return None
    features = np.array([sample.num_features for sample, *_ in measured], dtype=np.float64)
    rows = features * [sample.batch_size for sample, *_ in measured]
    num_bytes = rows * [FP32_BYTES * sample.embedding_dim for sample, *_ in measured]
    design = np.stack((features, rows, num_bytes), axis=1)
    forward, backward = (
        _non_negative(design, np.array([times[direction] for _, *times in measured])) for direction in (0, 1)
    )
    feature, row, byte = zip(forward, backward, strict=True)
    return Expansion(feature_ms=feature, row_ms=row, byte_ms=byte)


def _non_negative(design: FloatArray, times_ms: FloatArray) -> list[float]:
    """Return the coefficients [k] of least relative error, none below 0: the best fit to some of the columns."""
    scaled = design / times_ms[:, None]
    least, found = float("inf"), np.zeros(design.shape[1])
    for count in range(1, design.shape[1] + 1):
        for columns in map(list, combinations(range(design.shape[1]), count)):
            fitted = np.linalg.lstsq(scaled[:, columns], np.ones(len(times_ms)))[0]
            error = float(((scaled[:, columns] @ fitted - 1) ** 2).sum())
            if error < least and (fitted >= 0).all():
                least, found = error, np.zeros(design.shape[1])
                found[columns] = fitted
    coefficients: list[float] = found.tolist()
    return coefficients

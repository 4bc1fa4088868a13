"""Times of features, rows, and bytes that are copied to repeated lists, from records of copies. Measures nothing."""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.bundle import ExpansionCost
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_api.documents.tables import DataType

from neuroshard_costs.fitting.relative_squares import non_negative
from neuroshard_costs.shards import BYTES_PER_ELEMENT

MIN_RECORDS = 6
"""Fewest records that are fitted: three numbers from fewer would follow the noise."""


def fitted_expansion(records: Sequence[ProfileRecord]) -> ExpansionCost | None:
    """Return the least relative squares over the records of copies. None: there are fewer than MIN_RECORDS."""
    found = [(each.expansion, each.forward_ms, each.backward_ms) for each in records if each.is_usable]
    measured = [(sample, forward, backward) for sample, forward, backward in found if sample and forward and backward]
    if len(measured) < MIN_RECORDS:
        return None
    features = np.array([sample.num_features for sample, *_ in measured], dtype=np.float64)
    rows = np.array([sample.batch_size for sample, *_ in measured], dtype=np.float64)
    num_bytes = features * rows * [BYTES_PER_ELEMENT[DataType.FP32] * sample.embedding_dim for sample, *_ in measured]
    design = np.stack((features, rows, num_bytes), axis=1)
    forward, backward = (
        non_negative(design, np.array([times[direction] for _, *times in measured])) for direction in (0, 1)
    )
    feature, row, byte = zip(forward, backward, strict=True)
    return ExpansionCost(feature_ms=feature, group_row_ms=row, byte_ms=byte)

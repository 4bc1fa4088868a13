"""Times of matrix products and of their operations, from records of linear layers. Measures nothing."""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.bundle import MatrixTimes
from neuroshard_api.documents.records import ProfileRecord

from neuroshard_costs.fitting.relative_squares import non_negative

MIN_RECORDS = 4
"""Fewest records that are fitted: two numbers from fewer would follow the noise."""


def fitted_matrices(records: Sequence[ProfileRecord]) -> MatrixTimes | None:
    """Return the least relative squares over the records of layers. None: there are fewer than MIN_RECORDS."""
    measured = [
        (float(record.matrix.forward_flops), record.forward_ms, record.backward_ms)
        for record in records
        if record.is_usable and record.matrix and record.forward_ms and record.backward_ms
    ]
    if len(measured) < MIN_RECORDS:
        return None
    columns = np.array(measured)
    fits = [
        non_negative(np.stack((np.ones(len(columns)), times * columns[:, 0]), axis=1), columns[:, times])
        for times in (1, 2)  # backward, which has twice the operations
    ]
    products, operations = zip(*fits, strict=True)
    return MatrixTimes(product_ms=products, operation_ms=operations)

"""Times of matrix products and of their operations, from records of linear layers. Measures nothing."""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.bundle import MatrixTimes
from neuroshard_api.documents.records import ProfileRecord

from neuroshard_costs.fitting.relative_squares import fixed_and_each

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
    # Backward has twice the operations.
    fits = [fixed_and_each(times * columns[:, 0], columns[:, times]) for times in (1, 2)]
    products, operations = zip(*fits, strict=True)
    return MatrixTimes(product_ms=products, operation_ms=operations)

"""Tables whose repeated lists are left out of batches: lookups and hits of distinct lists alone.

A repeat touches the rows of the list that it repeats. Rows touched stay; lookups and hits fall by the factor.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.tables import Table

from neuroshard_costs.arithmetic import ordered_product
from neuroshard_costs.reuse.hit_counts import divided_bins


def without_repeats(table: Table, factor: float) -> Table:
    """Return a table as batches without repeats look it up.

    Args:
        table: as batches with all lists look it up.
        factor: samples over distinct ones.
    """
    histogram = table.reuse_histogram
    return table.model_copy(
        update={
            "pooling_factor": table.pooling_factor / factor,
            "reuse_histogram": None if histogram is None else fewer_hits(histogram, factor),
        }
    )


def fewer_hits(histogram: Sequence[float], factor: float) -> tuple[float, ...]:
    """Return a reuse histogram in which every row has its hits divided by a factor, and at least one."""
    return tuple(ordered_product(np.array(histogram), divided_bins(factor)).tolist())

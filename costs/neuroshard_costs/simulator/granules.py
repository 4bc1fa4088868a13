"""Bytes that a device's memory moves for rows: whole sectors in the cache, whole bursts and opened pages in DRAM."""

import numpy as np

from neuroshard_costs.arithmetic import expm1, log1p
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.constants import BURST_BYTES, PAGE_BYTES, ROW_ACTIVATION_BYTES, SECTOR_BYTES


def sector_bytes(num_bytes: FloatArray) -> FloatArray:
    """Return [n] bytes of whole sectors."""
    result: FloatArray = np.ceil(num_bytes / SECTOR_BYTES) * SECTOR_BYTES
    return result


def random_bytes(num_bytes: FloatArray) -> FloatArray:
    """Return [n] price of one access at a random place in DRAM: whole bursts, and opening the page; 0 for nothing."""
    result: FloatArray = np.where(
        num_bytes > 0, np.ceil(num_bytes / BURST_BYTES) * BURST_BYTES + ROW_ACTIVATION_BYTES, 0.0
    )
    return result


def sorted_bytes(row_bytes: FloatArray, *, num_rows: FloatArray, touched_rows: FloatArray) -> FloatArray:
    """Return [n] price of visiting the touched rows once in ascending order: neighbors share bursts and pages.

    Touched rows are spread evenly over the table, so that a unit of k rows is visited with chance 1 - (1 - p) ** k,
    p the share of rows that are touched. Few touched rows cost as much each as random_bytes; many cost less.

    Args:
        row_bytes: [n] of one row; 0 costs nothing.
        num_rows: [n] of the table.
        touched_rows: [n] of them, at most num_rows.
    """
    share = np.minimum(touched_rows / num_rows, 1.0)

    def units(unit_bytes: float) -> FloatArray:
        """Return the aligned units of this size that are visited."""
        per_row = np.ceil(row_bytes / unit_bytes)
        rows_per_unit = np.maximum(unit_bytes / np.maximum(row_bytes, 1.0), 1.0)
        shared = num_rows / rows_per_unit * -expm1(rows_per_unit * log1p(-np.minimum(share, 1 - 1e-12)))
        wide: FloatArray = touched_rows * per_row
        shared = np.clip(shared, np.minimum(touched_rows, 1.0), touched_rows)
        return np.where(row_bytes < unit_bytes, shared, wide)

    pages = np.minimum(units(PAGE_BYTES), touched_rows)
    result: FloatArray = np.where(row_bytes > 0, BURST_BYTES * units(BURST_BYTES) + ROW_ACTIVATION_BYTES * pages, 0.0)
    return result

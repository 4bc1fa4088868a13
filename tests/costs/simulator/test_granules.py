"""What memory moves for rows in random and in ascending order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.granules import random_bytes, sector_bytes, sorted_bytes


def in_order(row_bytes: float, num_rows: float, touched_rows: float) -> float:
    """Return the price of one table."""
    found: FloatArray = sorted_bytes(
        np.array([row_bytes]), num_rows=np.array([num_rows]), touched_rows=np.array([touched_rows])
    )
    return float(found[0])


def test_rows_fill_whole_sectors_and_bursts() -> None:
    """36 bytes move two sectors of 32 in the cache and one burst of 64 in DRAM, for which a page is opened."""
    assert sector_bytes(np.array([36.0])).tolist() == [64.0]
    assert random_bytes(np.array([36.0, 72.0, 0.0])).tolist() == [96.0, 160.0, 0.0]


def test_a_table_that_is_touched_throughout_moves_once() -> None:
    """4 bytes of every row are read in whole bursts, each page opened once."""
    assert in_order(4, 2**20, 2**20) == pytest.approx(4 * 2**20 + 4 * 2**20 / 1024 * 32)


def test_rows_that_lie_far_apart_cost_as_much_as_in_random_order() -> None:
    """A thousand of 10^9 rows share neither bursts nor pages."""
    assert in_order(4, 1e9, 1e3) == pytest.approx(1e3 * 96, rel=1e-3)


@given(quads=st.integers(1, 2048), rows=st.floats(1, 1e12), share=st.floats(1e-9, 1))
def test_ascending_order_never_costs_more_than_random_order(quads: int, rows: float, share: float) -> None:
    """Nor less than the bytes of the touched rows."""
    touched = max(1.0, rows * share)
    price = in_order(4.0 * quads, rows, touched)

    assert price <= touched * float(random_bytes(np.array([4.0 * quads]))[0]) * (1 + 1e-9)
    assert price >= touched * 4.0 * quads * (1 - 1e-9)


def test_a_table_without_state_moves_nothing() -> None:
    """SGD has no bytes to visit."""
    assert in_order(0, 1e6, 1e5) == 0

"""How often lists of synthetic sessions are expected to repeat."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from neuroshard_api.sharding.session_repeats import SessionRuns


@given(
    block_samples=st.integers(1, 512),
    concurrency=st.integers(1, 64),
    opening_chance=st.floats(1e-6, 1.0),
    run=st.integers(0, 128),
    change_probability=st.floats(1e-6, 1.0),
)
@example(block_samples=100, concurrency=1, opening_chance=1e-6, run=3, change_probability=1e-6)
@example(block_samples=512, concurrency=1, opening_chance=1e-6, run=117, change_probability=1e-6)
def test_a_block_has_at_least_one_distinct_list_and_at_most_one_per_sample(
    block_samples: int, concurrency: int, opening_chance: float, run: int, change_probability: float
) -> None:
    """For any sessions, also where nearly all samples are of one whose list hardly ever changes."""
    runs = SessionRuns(block_samples=block_samples, concurrency=concurrency, opening_chance=opening_chance, run=run)

    assert 1 - 1e-9 <= block_samples * runs.distinct_share(change_probability) <= block_samples * (1 + 1e-9)


@pytest.mark.parametrize("run", [3, 45, 117])
def test_a_block_of_one_session_whose_list_stays_has_one_distinct_list(run: int) -> None:
    """However long its runs are, and whether they divide the block or not."""
    runs = SessionRuns(block_samples=4096, concurrency=1, opening_chance=1e-9, run=run)

    assert 4096 * runs.distinct_share(1e-9) == pytest.approx(1.0, rel=1e-3)

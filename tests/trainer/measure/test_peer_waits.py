"""Waits for other ranks within the times of collectives."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.measure.peer_waits import least_ms
from support.trainer.rank_server import RankServer

WORKER = Path(__file__).with_name("peer_waits_worker.py")
Milliseconds = st.floats(0.0, 1e3)


@given(
    st.integers(1, 4).flatmap(
        lambda ranks: st.lists(
            st.tuples(st.lists(Milliseconds, min_size=ranks, max_size=ranks), Milliseconds), min_size=1, max_size=5
        )
    )
)
def test_the_rank_that_comes_last_has_the_exchange_alone(steps: list[tuple[list[float], float]]) -> None:
    """However late ranks come to it, the least time of a collective is its exchange, by no clock that they share."""
    num_ranks = len(steps[0][0])
    ranks = [
        {step: {"exchange": max(arrivals) - arrivals[rank] + ms} for step, (arrivals, ms) in enumerate(steps)}
        for rank in range(num_ranks)
    ]

    exchanges = sorted(ms for _, ms in steps)
    middle = (exchanges[len(steps) // 2] + exchanges[(len(steps) - 1) // 2]) / 2
    assert least_ms(ranks)["exchange"] == pytest.approx(middle, abs=1e-9)


def test_what_one_rank_did_not_time_is_not_compared() -> None:
    """A step or a collective that a rank lacks has no least time."""
    ranks = [{0: {"a": 3.0, "b": 5.0}, 1: {"a": 1.0}}, {0: {"a": 4.0}, 2: {"a": 0.5}}]

    assert least_ms(ranks) == {"a": 3.0}
    assert least_ms([]) == {}


@pytest.mark.processes
def test_a_rank_that_computes_longer_is_waited_for_and_makes_no_exchange_longer(
    ranks: RankServer, tmp_path: Path
) -> None:
    """Rank 1 computes 30 ms before each exchange: rank 0 waits for it, and the exchange itself is as short on both."""
    (waiting, late) = ranks.found(WORKER, folder=tmp_path, count=2)

    assert waiting["forward_ms"] >= 30
    assert waiting["forward_wait_ms"] >= 20
    assert late["forward_wait_ms"] < 10
    assert waiting["forward_ms"] - waiting["forward_wait_ms"] == pytest.approx(
        late["forward_ms"] - late["forward_wait_ms"]
    )

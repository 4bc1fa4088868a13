"""Runs of sessions, and sessions that are held out."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.data.sessions import chosen, shuffled_runs

sessions = st.lists(st.integers(-3, 6), max_size=60)


def shuffled(ids: Sequence[int], *, run: int, seed: int = 0, times: Sequence[int] | None = None) -> list[int]:
    """Return the rows of a block whose samples are of these sessions."""
    rows = np.arange(len(ids)) * 10
    ordered = np.arange(len(ids)) if times is None else np.array(times)
    found = shuffled_runs(rows, np.array(ids, dtype=np.int64), ordered, run=run, rng=np.random.default_rng(seed))
    return [int(row) // 10 for row in found]


@given(ids=sessions, run=st.integers(0, 9), seed=st.integers(0, 5))
def test_runs_are_permuted_and_their_samples_stay_together(ids: list[int], run: int, seed: int) -> None:
    """Every sample comes once; the samples of a session, cut from its first on, are neighbors in their order."""
    order = shuffled(ids, run=run, seed=seed)

    assert sorted(order) == list(range(len(ids)))
    place = {row: order.index(row) for row in range(len(ids))}
    for session in set(ids):
        own = [row for row, each in enumerate(ids) if each == session]
        cut = [own[start : start + run] for start in range(0, len(own), run)] if run else [own]
        for each in cut:
            assert [place[row] - place[each[0]] for row in each] == list(range(len(each)))


@given(ids=sessions, run=st.integers(0, 4), seed=st.integers(0, 5))
def test_a_clustered_block_has_the_order_of_any_other(ids: list[int], run: int, seed: int) -> None:
    """Sorting its sessions gives the runs that sorting its samples does."""
    stored = [place for session in dict.fromkeys(ids) for place, each in enumerate(ids) if each == session]

    clustered = shuffled([ids[place] for place in stored], run=run, seed=seed, times=stored)

    assert [stored[row] for row in clustered] == shuffled(ids, run=run, seed=seed)


def test_time_orders_the_samples_of_a_session() -> None:
    """Equal times keep the stored order."""
    assert shuffled([4, 4, 4, 4], run=0, times=[3, 1, 3, 2]) == [1, 3, 0, 2]


def test_whole_sessions_are_permuted() -> None:
    """With run 0 each session is one stretch, and not every one is at its stored place."""
    ids = [session for session in range(20) for _ in range(3)]

    order = [ids[row] for row in shuffled(ids, run=0)]

    assert [(key, len(list(own))) for key, own in groupby(order)] == [(key, 3) for key in dict.fromkeys(order)]
    assert list(dict.fromkeys(order)) != list(range(20))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_of_the_sessions_is_chosen(share: float) -> None:
    """By the session alone: each is chosen or not, and another seed chooses others."""
    ids = np.repeat(np.arange(20_000), 2)

    found = chosen(ids, share=share, seed=3)

    assert found.mean() == pytest.approx(share, abs=0.01)
    assert (found[::2] == found[1::2]).all()
    assert (chosen(ids, share=share, seed=4) != found).any()


def test_a_larger_share_keeps_the_smaller_ones_sessions() -> None:
    """More evaluation samples are the same and others."""
    ids = np.arange(1000)

    assert not (chosen(ids, share=0.1, seed=0) & ~chosen(ids, share=0.2, seed=0)).any()
    assert Counter(chosen(ids, share=0.0, seed=0).tolist()) == {False: 1000}

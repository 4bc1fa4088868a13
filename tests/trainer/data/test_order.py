"""The split and the order of samples."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.data.order import BlockRows, SampleOrder
from neuroshard_trainer.data.sessions import BlockSessions, Sessions

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def flat(parts: Iterable[BlockRows]) -> list[tuple[int, int]]:
    """Return (block, row) of each sample."""
    return [(part.block, row) for part in parts for row in part.rows.tolist()]


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "as stored"])
@given(sizes=sizes, percent=st.integers(0, 90), seed=st.integers(0, 5))
def test_every_sample_is_trained_on_once_or_held_out(
    sizes: list[int], percent: int, seed: int, *, shuffle: bool
) -> None:
    """An epoch and the held-out samples together are the data, and share nothing."""
    order = SampleOrder(sizes, validation_percent=percent, seed=seed, shuffle=shuffle)

    training = flat(order.training(0, order.num_training))
    held_out = flat(order.validation(0, order.num_validation))

    everything = [(block, row) for block, size in enumerate(sizes) for row in range(size)]
    assert sorted(training + held_out) == everything
    assert order.num_validation == sum(sizes) * percent // 100


@given(sizes=sizes, cuts=st.lists(st.integers(0, 200), max_size=8))
def test_the_order_does_not_depend_on_how_it_is_asked_for(sizes: list[int], cuts: list[int]) -> None:
    """Any world size and batch size walks through the same samples, over the ends of epochs too."""
    order = SampleOrder(sizes, validation_percent=10, seed=3, shuffle=True)
    end = 2 * order.num_training + 1
    marks = [0, *sorted(min(cut, end) for cut in cuts), end]

    pieces = [flat(order.training(start, stop - start)) for start, stop in pairwise(marks)]

    assert [each for piece in pieces for each in piece] == flat(order.training(0, end))


def test_epochs_differ_in_order_only() -> None:
    """The same samples come in another order."""
    order = SampleOrder([50, 30], validation_percent=20, seed=0, shuffle=True)
    count = order.num_training

    first, second = flat(order.training(0, count)), flat(order.training(count, count))

    assert first != second
    assert sorted(first) == sorted(second)


def test_unshuffled_samples_come_as_they_are_stored() -> None:
    """Less the held-out ones."""
    order = SampleOrder([5, 4], validation_percent=0, seed=0, shuffle=False)

    assert flat(order.training(0, 9)) == [(0, row) for row in range(5)] + [(1, row) for row in range(4)]


@pytest.mark.parametrize(("start", "count", "expected"), [(3, 100, 7), (10, 5, 0), (0, 4, 4)])
def test_held_out_samples_end(start: int, count: int, expected: int) -> None:
    """They are gone through once."""
    order = SampleOrder([60, 40], validation_percent=10, seed=0, shuffle=True)

    assert len(flat(order.validation(start, count))) == expected


def test_a_limit_keeps_held_out_samples_of_small_blocks() -> None:
    """Blocks that hold nothing out are not what the limit thins to."""
    order = SampleOrder([50] * 20_000, validation_percent=1, seed=0, shuffle=True, max_validation=5_000)

    assert order.num_validation == 5_000


class Log:
    """Sessions of the samples of each block."""

    def __init__(self, *blocks: list[int]) -> None:
        self.blocks = blocks
        self.sizes = [len(block) for block in blocks]

    def sessions(self, block: int) -> BlockSessions:
        """Return a block's, in the order of time."""
        ids = np.array(self.blocks[block], dtype=np.int64)
        return BlockSessions(ids=ids, times=np.arange(len(ids)))

    def order(self, *, percent: int = 0, run: int = 8, seed: int = 0, most: int | None = None) -> SampleOrder:
        """Return the order of the log's samples."""
        return SampleOrder(
            self.sizes,
            validation_percent=percent,
            seed=seed,
            shuffle=True,
            max_validation=most,
            sessions=Sessions(source=self, run=run),
        )

    def ids(self, parts: Iterable[BlockRows]) -> list[int]:
        """Return the sessions of samples."""
        return [self.blocks[block][row] for block, row in flat(parts)]


logs = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=40), min_size=1, max_size=4)


@given(blocks=logs, percent=st.integers(1, 90), run=st.integers(0, 4), seed=st.integers(0, 5))
def test_whole_sessions_are_held_out(blocks: list[list[int]], percent: int, run: int, seed: int) -> None:
    """Every sample is trained on once or held out, and no session is on both sides, whatever blocks it is in."""
    log = Log(*blocks)
    order = log.order(percent=percent, run=run, seed=seed)

    training = list(order.training(0, order.num_training)) if order.num_training else []
    held_out = list(order.validation(0, order.num_validation))

    everything = [(block, row) for block, size in enumerate(log.sizes) for row in range(size)]
    assert sorted(flat(training) + flat(held_out)) == everything
    assert not set(log.ids(training)) & set(log.ids(held_out))


def test_held_out_sessions_do_not_depend_on_the_order_of_the_log() -> None:
    """A clustered log holds out the sessions that it held out before."""
    stored = [[(7 * row + block) % 30 for row in range(50)] for block in range(4)]
    clustered = sorted(session for block in stored for session in block)
    before, after = Log(*stored), Log(clustered[:120], clustered[120:])

    found = [set(log.ids(log.order(percent=30).validation(0, 1000))) for log in (before, after)]

    assert found[0] == found[1]
    assert found[0]


def test_a_limit_of_held_out_samples_trains_on_no_held_out_session() -> None:
    """There are about as many as the limit, never more, and none of their sessions is trained on."""
    log = Log(*([10 * block + row // 5 for row in range(50)] for block in range(40)))
    order = log.order(percent=50, most=100)

    assert 50 <= order.num_validation <= 100
    assert not set(log.ids(order.training(0, order.num_training))) & set(log.ids(order.validation(0, 100)))


def test_runs_of_one_sample_are_the_order_without_sessions() -> None:
    """So that sessions may decide what is held out and nothing else."""
    log = Log([1, 1, 2, 2, 3, 3], [4, 4, 4, 4])
    plain = SampleOrder(log.sizes, validation_percent=0, seed=3, shuffle=True)

    assert flat(log.order(run=1, seed=3).training(0, 25)) == flat(plain.training(0, 25))


@given(cuts=st.lists(st.integers(0, 60), max_size=8))
def test_the_order_of_runs_does_not_depend_on_how_it_is_asked_for(cuts: list[int]) -> None:
    """A restart with other ranks goes on with the next sample, also within a run."""
    order = Log([1, 1, 1, 2, 2, 3] * 3, [4, 4, 5, 5, 5, 6] * 2).order(run=2)
    marks = [0, *sorted(cuts), 60]

    pieces = [flat(order.training(start, stop - start)) for start, stop in pairwise(marks)]

    assert [each for piece in pieces for each in piece] == flat(order.training(0, 60))

"""The split and the order of samples."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.data.order import BlockRows, SampleOrder

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

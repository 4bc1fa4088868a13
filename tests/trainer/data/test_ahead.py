"""Items that a thread takes while the one before them is used."""

import threading
from collections.abc import Iterator

import pytest
from neuroshard_trainer.data.ahead import ahead

WITHIN_S = 30.0


def test_the_next_item_is_taken_while_one_is_used() -> None:
    """In another thread, in the order of the items, and no more than two of them before they are asked for."""
    taken = [threading.Event() for _ in range(5)]
    threads = []

    def items() -> Iterator[int]:
        for number, event in enumerate(taken):
            threads.append(threading.current_thread())
            event.set()
            yield number

    found = ahead(items())
    assert next(found) == 0
    assert taken[1].wait(WITHIN_S)
    assert taken[2].wait(WITHIN_S)
    assert not taken[4].is_set()
    assert list(found) == [1, 2, 3, 4]
    assert threading.current_thread() not in threads


def test_an_error_is_raised_after_the_items_before_it() -> None:
    """In the thread that uses them, as it was raised."""

    def items() -> Iterator[int]:
        yield 0
        raise KeyError("a bug")

    found = ahead(items())
    assert next(found) == 0
    with pytest.raises(KeyError, match="a bug"):
        next(found)


@pytest.mark.parametrize("used", [0, 1, 3])
def test_items_that_are_left_end_the_thread(used: int) -> None:
    """Whether it waits for room or takes an item; the iterator is closed with it."""
    before = threading.active_count()
    found = ahead(iter(range(1000)))
    for _ in range(used):
        next(found)

    found.close()

    assert threading.active_count() == before

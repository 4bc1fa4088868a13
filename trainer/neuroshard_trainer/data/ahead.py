"""Items of an iterator, taken by a thread while the one before them is used.

A thread waits for its turn next to the computation of the step, where the training thread would wait instead of it.
"""

import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
_CLOSE_SECONDS = 10.0
"""Maximum wait for the thread when items are left: it ends after the item that it is taking."""


class _Ended:
    """What follows the last item."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Taker(Generic[T]):
    """The thread, and the item that is ready."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._ready: Queue[T | _Ended] = Queue(maxsize=1)
        self._is_closed = False
        self._thread = threading.Thread(target=self._take, name="batches", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            for item in self._items:
                self._ready.put(item)
                if self._is_closed:
                    return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that uses the items
            self._ready.put(_Ended(error))
        else:
            self._ready.put(_Ended(None))

    def next(self) -> T | _Ended:
        """Wait for the next item."""
        return self._ready.get()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        with suppress(Empty):
            self._ready.get_nowait()  # it may wait for room
        self._thread.join(_CLOSE_SECONDS)


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items in their order; at most one is ready, and one more is being taken, before it is asked for.

    An error of the iterator is raised here, after the items before it.
    """
    taker = _Taker(items)
    try:
        while not isinstance(found := taker.next(), _Ended):
            yield found
        if found.error is not None:
            raise found.error
    finally:
        taker.close()

"""Waits for a state by looking again and again, and remembers what it saw last."""

import time
from collections.abc import Callable
from typing import TypeVar

from neuroshard_cluster.errors import ClusterError, TimedOutError

Seen = TypeVar("Seen")
LOOK_EVERY_S = 0.2


def eventually(what: str, look: Callable[[], Seen], *, within_s: float, accept: Callable[[Seen], bool] = bool) -> Seen:
    """Return the first result of `look` that `accept` takes.

    A look that raises a `ClusterError` counts as not yet, so an API server may be down for a while.

    Raises:
        TimedOutError: None came within `within_s` seconds; the message holds the last result or error.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            seen = look()
            if accept(seen):
                return seen
            last = repr(seen)
        except ClusterError as error:
            last = str(error)
        if time.monotonic() > deadline:
            raise TimedOutError(f"{what}: not within {within_s:.0f} s; last seen: {last}")
        time.sleep(LOOK_EVERY_S)

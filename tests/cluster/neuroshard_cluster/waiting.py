"""Waits for a state by looking again and again, and remembers what it saw last."""

import time
from collections.abc import Callable
from typing import TypeVar

from neuroshard_cluster.errors import ClusterError, TimedOutError

Seen = TypeVar("Seen")
WITHIN_S = 600.0
"""What anything may take on a machine that is busy otherwise; the limit only ends a hang."""
LOOK_EVERY_S = 0.2
LOOK_AT_LEAST_EVERY_S = 1.0
PAUSE_SHARE = 0.05
"""Of the time that was waited so far: a look costs a tenth of a second of a core, which what is waited for needs."""


def eventually(
    what: str, look: Callable[[], Seen], *, within_s: float = WITHIN_S, accept: Callable[[Seen], bool] = bool
) -> Seen:
    """Return the first result of `look` that `accept` takes.

    A look that raises a `ClusterError` counts as not yet, so an API server may be down for a while.

    Raises:
        TimedOutError: None came within `within_s` seconds; the message holds the last result or error.
    """
    began = time.monotonic()
    deadline = began + within_s
    while True:
        try:
            seen = look()
            if accept(seen):
                return seen
            last = repr(seen)
        except ClusterError as error:
            last = str(error)
        now = time.monotonic()
        if now > deadline:
            raise TimedOutError(f"{what}: not within {within_s:.0f} s; last seen: {last}")
        time.sleep(min(max(LOOK_EVERY_S, PAUSE_SHARE * (now - began)), LOOK_AT_LEAST_EVERY_S))

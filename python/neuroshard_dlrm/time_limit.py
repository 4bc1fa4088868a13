"""A limit on the time of Python code that offers none of its own."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LEAST_SECONDS = 1e-3  # a timer of 0 would never end


class TimeLimitError(BaseException):
    """The time is over. Code that catches every Exception does not swallow it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeLimitError in the block after these seconds of the wall clock. None: no limit.

    It interrupts Python code of the main thread, by SIGALRM; what waits in a library is interrupted when it returns.
    """
    if seconds is None:
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGALRM, end)
    started, left = time.monotonic(), 0.0
    try:
        left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        # A timer that ran before goes on with what is left of it; 0 stops the timer.
        rest = max(left - (time.monotonic() - started), LEAST_SECONDS) if left else 0
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, rest)

import signal
from collections import deque
from collections.abc import Iterator

import pytest
from neuroshard_dlrm.time_limit import TimeLimitError, time_limit


def spin() -> Iterator[None]:
    """Run Python code forever."""
    while True:
        yield


def test_code_that_runs_too_long_is_interrupted() -> None:
    """Also a loop that never ends."""
    with pytest.raises(TimeLimitError), time_limit(0.01):
        deque(spin(), maxlen=0)


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_a_block_that_ends_in_time_leaves_no_alarm(seconds: float | None) -> None:
    """The timer and the handler of before are back."""
    before, (left, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    with time_limit(seconds):
        pass

    assert signal.getitimer(signal.ITIMER_REAL)[0] <= left  # of the test's own limit
    assert signal.getsignal(signal.SIGALRM) is before

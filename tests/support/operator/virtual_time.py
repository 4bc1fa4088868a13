"""An event loop whose clock does not move while there is work, and jumps to the next timer when there is none.

A story of minutes takes milliseconds, and a busy machine changes nothing in it.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

QUIET_S = 0.05
"""How long nothing arrives at any socket of this process before nothing is under way."""


class _Jumps(selectors.DefaultSelector):
    """Waits for sockets, and lets the clock jump instead of waiting for a timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the sockets that are ready; where there is none, the time of the next timer has come."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(QUIET_S)
        if not ready:
            self.now_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumps.now_s


def run_in_virtual_time(story: Coroutine[Any, Any, None]) -> None:
    """Run a story, by whose clock all sleeps, timeouts, and alarms of its loop are."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(story)

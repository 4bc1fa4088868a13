"""A queue of keys that wake a worker: each key at most once waiting, never two workers on one key.

What `client-go` calls a work queue, on asyncio. It holds keys and times, never work or results.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 300.0
JITTER = 0.1  # keys that failed together must not come back together


@dataclass(frozen=True, kw_only=True, slots=True)
class _Alarm:
    """A wake-up in the future."""

    at_s: float
    handle: asyncio.TimerHandle


class KeyedQueue(Generic[Key]):
    """Keys that want a pass. All methods belong to one event loop.

    A key that is woken while a worker has it comes back once that worker is done, so no wake-up is lost. Of several
    delayed wake-ups of a key only the earliest is kept: a pass that finds nothing to do asks for the next one. A key
    may have to rest after each pass, so that the events that the pass caused, and others near it, are one more look.
    """

    def __init__(self, *, rest_s: float = 0.0, spread: Callable[[], float] = random.random) -> None:
        """Make an empty queue; keys rest for `rest_s`, and `spread` gives numbers in [0, 1) for the jitter."""
        self._rest_s = rest_s
        self._spread = spread
        self._waiting: deque[Key] = deque()
        self._woken_at_s: dict[Key, float] = {}
        self._taken: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._alarms: dict[Key, _Alarm] = {}
        self._failures: dict[Key, int] = {}
        self._arrival = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker."""
        return len(self._waiting)

    def wake(self, key: Key) -> None:
        """Ask for a pass at `key` now; harmless when it is asked for already."""
        self._cancel_alarm(key)
        now_s = _now_s()
        if key in self._taken:
            self._again.setdefault(key, now_s)
        elif key not in self._woken_at_s:
            self._woken_at_s[key] = now_s
            self._waiting.append(key)
            self._arrival.set()

    def wake_after(self, key: Key, delay_s: float) -> None:
        """Ask for a pass at `key` in `delay_s` seconds, or earlier if one is due earlier."""
        at_s = _now_s() + delay_s
        if key in self._alarms:
            if self._alarms[key].at_s <= at_s:
                return
            self._cancel_alarm(key)
        handle = asyncio.get_running_loop().call_at(at_s, self.wake, key)
        self._alarms[key] = _Alarm(at_s=at_s, handle=handle)

    async def take(self) -> tuple[Key, float]:
        """Return a key, once there is one, and the seconds that it waited. The caller must call `done` for it."""
        while not self._waiting:
            self._arrival.clear()
            await self._arrival.wait()
        key = self._waiting.popleft()
        self._taken.add(key)
        return key, _now_s() - self._woken_at_s.pop(key)

    def done(self, key: Key) -> None:
        """Give back a key that `take` returned."""
        if self._rest_s:
            asyncio.get_running_loop().call_later(self._rest_s, self._release, key)
        else:
            self._release(key)

    def _release(self, key: Key) -> None:
        self._taken.discard(key)
        if key in self._again:
            self.wake(key)
            # The wait counts from the wake-up and not from the end of the work that it met.
            self._woken_at_s[key] = self._again.pop(key)

    def succeeded(self, key: Key) -> None:
        """Forget the failures of `key`: the next one waits shortly again."""
        self._failures.pop(key, None)

    def failed(self, key: Key) -> float:
        """Ask for another pass after a pause that doubles with each failure in a row; return the pause in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause_s = min(FIRST_BACKOFF_S * 2.0 ** min(failures, 30), LONGEST_BACKOFF_S)
        pause_s *= 1 + JITTER * self._spread()
        self.wake_after(key, pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """Drop what is kept for a key that no longer exists."""
        self._cancel_alarm(key)
        self._failures.pop(key, None)

    def close(self) -> None:
        """Cancel all wake-ups of the future."""
        for key in list(self._alarms):
            self._cancel_alarm(key)

    def _cancel_alarm(self, key: Key) -> None:
        alarm = self._alarms.pop(key, None)
        if alarm:
            alarm.handle.cancel()


def _now_s() -> float:
    return asyncio.get_running_loop().time()

"""How fast the core of this thread is now: the processor time of a fixed loop that needs no memory.

A thread's processor time leaves out what other processes take of the core, but not what the physical core loses to its
second hyperthread, which may belong to another virtual machine, nor a lower clock. The same loop before and during a
training tells how much slower the cores became; the same Python has to run it.
"""

import time
from typing import Final

_ITERATIONS: Final = 10_000
_MS_PER_SECOND: Final = 1000.0


def loop_ms() -> float:
    """Run the loop, which takes about 0.3 ms, and return its processor time."""
    start, total = time.thread_time(), 0
    for number in range(_ITERATIONS):
        total += number * number
    return _MS_PER_SECOND * (time.thread_time() - start)

"""How long the event loop's turns take the processor: what an event waits for because of the operator itself."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

EVERY_S = 0.25


@asynccontextmanager
async def turns_observed(
    observe: Callable[[float], None], *, every_s: float = EVERY_S, clock: Callable[[], float] = time.process_time
) -> AsyncIterator[None]:
    """Measure the event loop while the context is open.

    Args:
        observe: gets the processor seconds of the whole process between two turns of this measurement. Threads count
            too, for they may hold the interpreter's lock. Time in which other processes had the processor does not.
        every_s: seconds between two turns of a loop that has nothing else to do.
        clock: processor seconds.
    """

    async def measure() -> None:
        while True:
            began_s = clock()
            await asyncio.sleep(every_s)
            observe(clock() - began_s)

    task = asyncio.create_task(measure())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

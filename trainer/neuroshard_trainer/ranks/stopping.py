"""What all ranks do together after a step: stop after SIGTERM to any rank, save when a checkpoint is due, or fail."""

import signal
import time
from collections.abc import Callable
from enum import IntEnum
from types import FrameType

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PERIOD_SECONDS = 0.25
"""Time from one vote to the next. The stop after SIGTERM is two of them later, of the 30 s or more that a pod has."""
MAX_STEPS = 64
"""From one vote to the next, for steps that may become slower meanwhile."""


class Wish(IntEnum):
    """What one rank wants after a step; of several the greatest counts."""

    GO_ON = 0
    SAVE = 1
    STOP = 2
    FAIL = 3


class StepVote:
    """Asks all ranks several times a second whether one of them was asked to stop, or wants a checkpoint.

    The answer to a vote is read in the next one, so that nobody waits for it. How many steps lie between two votes is
    part of the vote, since clocks of ranks differ: the fewest that any rank takes in ``PERIOD_SECONDS``.

    Args:
        group: of all ranks, for CPU tensors.
        clock: seconds.
    """

    def __init__(self, group: dist.ProcessGroup, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._clock = clock
        self._asked = False
        self._pending: tuple[dist.Work, torch.Tensor] | None = None
        self._num_steps = 1
        """From the last vote to the next."""
        self._num_left = 1
        self._voted_at_s: float | None = None

    def listen(self) -> Callable[[], None]:
        """Take SIGTERM and SIGINT as the wish to stop. Returns what undoes it."""
        before = {number: signal.signal(number, self._ask) for number in SIGNALS}

        def undo() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return undo

    def wish(self, *, save_is_due: bool, save_has_failed: bool = False) -> Wish:
        """Return the next action. All ranks must call this once in every step, and all get the same answer.

        Args:
            save_is_due: whether this rank wants a checkpoint; clocks of ranks may differ.
            save_has_failed: whether one that this rank wrote in the background did.
        """
        self._num_left -= 1
        if self._num_left:
            return Wish.GO_ON
        num_steps = self._steps_of_a_period()
        answer, self._num_steps = self._answer()
        self._num_left = self._num_steps
        # A checkpoint that is written now is no longer due, although this rank's clock does not know it yet.
        own = Wish.SAVE if save_is_due and answer is not Wish.SAVE else Wish.GO_ON
        own = Wish.FAIL if save_has_failed else Wish.STOP if self._asked else own
        votes = torch.tensor([own, -num_steps], dtype=torch.float32)
        work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None, "this process is in the group"
        self._pending = (work, votes)
        return answer

    def close(self) -> None:
        """Wait for the last vote's answer. All ranks must call this when no more steps follow."""
        self._answer()

    def _steps_of_a_period(self) -> int:
        """Return the number of steps that this rank takes in a period, by those since the last vote."""
        before_s, self._voted_at_s = self._voted_at_s, self._clock()
        if before_s is None:
            return 1
        took_s = self._voted_at_s - before_s
        return max(1, min(MAX_STEPS, int(self._num_steps * PERIOD_SECONDS / max(took_s, 1e-9))))

    def _answer(self) -> tuple[Wish, int]:
        """Return the answer to the last vote, and the number of steps from the next vote to the one after it."""
        if self._pending is None:
            return Wish.GO_ON, 1
        work, votes = self._pending
        self._pending = None
        work.wait()
        wish, num_steps = votes.tolist()
        return Wish(int(wish)), -int(num_steps)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

"""What all ranks do together after a step: stop after SIGTERM to any rank, save when a checkpoint is due, or fail."""

import signal
from collections.abc import Callable
from enum import IntEnum
from types import FrameType

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Wish(IntEnum):
    """What one rank wants after a step; of several the greatest counts."""

    GO_ON = 0
    SAVE = 1
    STOP = 2
    FAIL = 3


class StepVote:
    """Asks all ranks in every step whether one of them was asked to stop, or wants a checkpoint.

    The answer to a step's question is read in the next step, so that nobody waits for it.

    Args:
        group: of all ranks, for CPU tensors.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._asked = False
        self._pending: tuple[dist.Work, torch.Tensor] | None = None

    def listen(self) -> Callable[[], None]:
        """Take SIGTERM and SIGINT as the wish to stop. Returns what undoes it."""
        before = {number: signal.signal(number, self._ask) for number in SIGNALS}

        def undo() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return undo

    def wish(self, *, save_is_due: bool, save_has_failed: bool = False) -> Wish:
        """Return what to do now. All ranks must call this once in every step, and all get the same answer.

        Args:
            save_is_due: whether this rank wants a checkpoint; clocks of ranks may differ.
            save_has_failed: whether one that this rank wrote in the background did.
        """
        answer = self._answer()
        # A checkpoint that is written now is no longer due, although this rank's clock does not know it yet.
        own = Wish.SAVE if save_is_due and answer is not Wish.SAVE else Wish.GO_ON
        own = Wish.FAIL if save_has_failed else Wish.STOP if self._asked else own
        votes = torch.tensor([float(own)])
        work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None, "this process is in the group"
        self._pending = (work, votes)
        return answer

    def close(self) -> None:
        """Wait for the last question's answer. All ranks must call this when no more steps follow."""
        self._answer()

    def _answer(self) -> Wish:
        if self._pending is None:
            return Wish.GO_ON
        work, votes = self._pending
        self._pending = None
        work.wait()
        return Wish(int(votes.item()))

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

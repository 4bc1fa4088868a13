"""An orderly stop: SIGTERM to any rank, and all ranks stop behind the same step."""

import signal
from collections.abc import Callable
from types import FrameType

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopVote:
    """Asks all ranks in every step whether one of them was told to stop.

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

    def stops(self) -> bool:
        """Return whether to stop now. All ranks must call this once in every step, and all get the same answer."""
        answer = self._answer()
        votes = torch.tensor([float(self._asked)])
        work = dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None, "this process is in the group"
        self._pending = (work, votes)
        return answer

    def close(self) -> None:
        """Wait for the last question's answer. All ranks must call this when no more steps follow."""
        self._answer()

    def _answer(self) -> bool:
        if self._pending is None:
            return False
        work, votes = self._pending
        self._pending = None
        work.wait()
        return bool(votes.item())

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

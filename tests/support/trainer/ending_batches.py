"""Batches whose reader process ends while it makes one. A module of its own, for that process imports it."""

import os
import signal
from dataclasses import dataclass

from neuroshard_trainer.data.collation import BatchMaker, HostBatch


@dataclass(frozen=True)
class Ending:
    """A maker whose process ends, or never answers, at one position."""

    made: BatchMaker
    position: int
    end: str
    """``killed``, ``stuck``, or the text of an error."""

    def __call__(self, position: int) -> HostBatch:
        """Return a batch, or end."""
        if position == self.position and self.end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if position == self.position and self.end == "stuck":
            signal.pause()
        if position == self.position:
            raise KeyError(self.end)
        return self.made.training(position)

"""One reader process: makes the batches whose positions torch's DataLoader hands to it.

It starts within the time of a plain import of torch, while its rank imports the rest. So it never imports TorchRec.
"""

import os
import signal

from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_api.process.parent import end_with_parent
from torch.utils.data import Dataset

from neuroshard_trainer.data.collation import HostBatch, Make

GIVES_WAY_BY = 10
"""Niceness: a core is a rank's first. One that waits for a batch leaves it, so that readers of it go on; one that is
interrupted by a reader is waited for by all ranks."""


class Positions(Dataset[HostBatch | ExpectedError]):
    """Batches by position; an error goes back as a value, for a DataLoader would put a traceback into its message."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def __getitem__(self, position: int) -> HostBatch | ExpectedError:
        """Return the batch, or why there is none."""
        try:
            return self._make(position)
        except ExpectedError as error:
            return error


def begin(_worker: int) -> None:
    """Set up this reader process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # DataLoader gave them handlers
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    keep_freed_memory()
    os.nice(GIVES_WAY_BY)

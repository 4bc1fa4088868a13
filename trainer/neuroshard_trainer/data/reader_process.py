"""One reader process: makes the batches whose positions torch's DataLoader hands to it.

It starts within the time of a plain import of torch, while its rank imports the rest. So it never imports TorchRec.
"""

import multiprocessing
import os
import signal
import threading

from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.host_memory import keep_freed_memory
from torch.utils.data import Dataset

from neuroshard_trainer.data.collation import HostBatch, Make


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
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()


def _end_with_parent() -> None:
    """End this reader once the rank is gone: the server, its parent by number, lives as long as a reader does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)

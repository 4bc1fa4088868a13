"""Reader processes: they read, decode and collate, so that the training thread only takes batches that are ready.

torch's DataLoader hands positions to the processes in turn and gives their batches back in order. Which batch is at a
position depends neither on the process nor on their number, so that the order is one, and a restart may have others.
The processes are forked from a server that is started before there are threads and devices; fork alone would copy locks
of this process in whatever state they are.
"""

import multiprocessing
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver

import torch
from neuroshard_api.host_memory import keep_freed_memory
from torch.utils.data import DataLoader, Dataset

from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import HostBatch, Make
from neuroshard_trainer.errors import PeerLostError, TrainerError

PREFETCHED_BATCHES = 3
"""Batches that each process has ready or in the making."""
_IS_LOST = re.compile(r"DataLoader (worker|timed out)")
_PIDS = re.compile(r"pid\(?s?\)? ([\d, ]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Readers:
    """The reader processes of one rank.

    Args:
        num_processes: of each pass over data. 0: the training thread reads, which helps a debugger.
        keys: names of the features.
        pin_memory: whether batches lie in memory that a GPU reads by itself.
        timeout_seconds: how long a batch may take to be read.
    """

    num_processes: int
    keys: Sequence[str]
    pin_memory: bool
    timeout_seconds: float

    def batches(self, make: Make, positions: range, device: torch.device) -> Iterator[Batch]:
        """Yield the batches at these positions, on a device.

        Raises:
            TrainerError: as the reader raised it.
            PeerLostError: a reader process is gone, or reads longer than the timeout.
        """
        if not positions:
            return
        loader = DataLoader(
            _Positions(make),
            batch_size=None,
            sampler=positions,
            num_workers=self.num_processes,
            prefetch_factor=PREFETCHED_BATCHES if self.num_processes else None,
            multiprocessing_context=multiprocessing.get_context("forkserver") if self.num_processes else None,
            worker_init_fn=_begin,
            pin_memory=self.pin_memory,
            timeout=self.timeout_seconds if self.num_processes else 0,
        )
        try:
            for found in loader:
                if isinstance(found, TrainerError):
                    raise found
                yield Batch.of(found, self.keys).to(device)
        except RuntimeError as error:
            if not _IS_LOST.search(str(error)):
                raise
            raise PeerLostError(_lost(str(error))) from error


def start_server() -> None:
    """Start the server that reader processes are forked from, unless it runs; this waits for nothing.

    It ignores SIGTERM, as its children do: who stops a training sends it to all of its processes, and the last batches
    before the checkpoint still have to be read. They end with this process, or when they are told.
    """
    forkserver.set_forkserver_preload([__name__])
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a new program keeps what is ignored
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)


class _Positions(Dataset[HostBatch | TrainerError]):
    """Batches by position; an error goes back as a value, for a DataLoader would put a traceback into its message."""

    def __init__(self, make: Make) -> None:
        self._make = make

    def __getitem__(self, position: int) -> HostBatch | TrainerError:
        try:
            return self._make(position)
        except TrainerError as error:
            return error


def _begin(_worker: int) -> None:
    """Set up a reader process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # DataLoader gave them handlers
        signal.signal(number, signal.SIG_IGN)
    keep_freed_memory()


def _lost(message: str) -> str:
    if "timed out" in message:
        return (
            "no batch was read within spec.rendezvous.timeoutSeconds; check that spec.data.path's storage answers, "
            "then start again"
        )
    pids = _PIDS.search(message)
    which = f"reader process {pids[1].strip(', ')}" if pids else "a reader process"
    return (
        f"{which} of this rank was killed, most often for lack of memory (see `dmesg`); lower "
        "spec.data.readerProcesses or batchSizePerDevice, or raise the memory limit, then start again"
    )

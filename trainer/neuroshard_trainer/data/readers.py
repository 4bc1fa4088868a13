"""Reader processes as a rank sees them: they read, decode and collate, and the training thread takes ready batches.

A batch comes through shared memory that the rank asks its reader for, tensor by tensor. That takes milliseconds where
the reader shares its core, so that a thread does it during the step before; with pinned memory DataLoader has its own.

torch's DataLoader hands positions to the processes in turn and gives their batches back in order. Which batch is at a
position depends neither on the process nor on their number, so that the order is one, and a restart may have others.
The processes are forked from a server that is started before there are threads and devices; fork alone would copy locks
of this process in whatever state they are.
"""

import multiprocessing
import re
import signal
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait

import torch
from neuroshard_api.process.errors import ExpectedError, PeerLostError
from torch.utils.data import DataLoader

from neuroshard_trainer.data import reader_process
from neuroshard_trainer.data.ahead import ahead
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import HostBatch, Make
from neuroshard_trainer.data.reader_process import Positions

MAX_BY_DEFAULT = 2
"""Reader processes of a rank, where a job does not say."""
PREFETCHED_BATCHES = 3
"""Batches that each process has ready or in the making."""
_ASKED_WITHIN_SECONDS = 1.0
_IS_LOST = re.compile(r"DataLoader (worker|timed out)")
_OF_READER = "in DataLoader worker process"
"""What torch says of an error that is raised by what a process reads."""
_PIDS = re.compile(r"pid\(?s?\)? ([\d, ]+)")


def num_readers(wanted: int | None, *, on_cpu: bool, num_ranks: int, num_cores: int) -> int:
    """Return the reader processes of a rank.

    A rank on a CPU computes on a core. Where each core has one, a reader takes turns with a rank that all others wait
    for, and hides nothing: the rank reads between its steps itself.

    Args:
        wanted: by the job. None: it does not say.
        on_cpu: whether ranks compute on cores.
        num_ranks: on this node.
        num_cores: of this node that its processes may use.
    """
    if wanted is not None:
        return wanted
    return min(MAX_BY_DEFAULT, max(0, num_cores // num_ranks - 1)) if on_cpu else MAX_BY_DEFAULT


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

    def batches(self, make: Make, positions: range, device: torch.device) -> Generator[Batch, None, None]:
        """Yield the batches at these positions, on a device. The processes end with the generator.

        Raises:
            ExpectedError: as the reader raised it.
            PeerLostError: a reader process is gone, or reads longer than the timeout.
        """
        if not positions:
            return
        loader = DataLoader(
            Positions(make),
            batch_size=None,
            sampler=positions,
            num_workers=self.num_processes,
            prefetch_factor=PREFETCHED_BATCHES if self.num_processes else None,
            multiprocessing_context=multiprocessing.get_context("forkserver") if self.num_processes else None,
            worker_init_fn=reader_process.begin,
            pin_memory=self.pin_memory,
            timeout=self.timeout_seconds if self.num_processes else 0,
        )
        found = self._patient(loader)
        received = self._received(found)
        taken = received if self.pin_memory or not self.num_processes else ahead(received)
        try:
            for batch in taken:
                yield batch.to(device)
        except RuntimeError as error:
            if not _IS_LOST.search(str(error)):
                raise
            raise PeerLostError(_lost(str(error))) from error
        except (ConnectionError, EOFError) as error:
            if _OF_READER in str(error):  # raised by what it reads
                raise
            # It died while it handed over the memory of a batch.
            pids = {each.sentinel: each.pid for each in getattr(found, "_workers", ())}
            gone = [f"pid {pids[ended]}" for ended in wait(list(pids), timeout=_ASKED_WITHIN_SECONDS) if ended in pids]
            raise PeerLostError(_lost(" ".join(gone))) from error
        finally:
            # Where batches are left, torch asks its processes to end and waits 5 s for each, twice, and where garbage
            # is collected in another order they never hear of it. They hold nothing that is worth the wait.
            for process in getattr(found, "_workers", ()):
                process.kill()
            taken.close()
            if self.num_processes:
                found._shutdown_workers()  # type: ignore[attr-defined] # noqa: SLF001 - torch's

    def _received(self, found: Iterator[HostBatch | ExpectedError]) -> Generator[Batch, None, None]:
        """Yield the readers' batches; where they are not pinned, their memory is mapped here, tensor by tensor."""
        for each in found:
            if isinstance(each, ExpectedError):
                raise each
            yield Batch.of(each, self.keys)

    def _patient(self, loader: "DataLoader[HostBatch | ExpectedError]") -> Iterator[HostBatch | ExpectedError]:
        """Return the loader's batches; a reader that died is noticed within seconds, not after the whole timeout.

        With a timeout, torch waits for all of it at once and only then asks whether its processes live.
        """
        batches = iter(loader)
        if self.num_processes:
            ask = type(batches)._try_get_data  # type: ignore[attr-defined] # noqa: SLF001 - torch's
            asked = weakref.ref(batches)  # a circle would keep the readers until the next collection of garbage

            def ask_often(timeout: float) -> tuple[bool, object]:
                until = time.monotonic() + timeout
                while True:
                    found: tuple[bool, object] = ask(asked(), min(_ASKED_WITHIN_SECONDS, timeout))
                    if found[0] or time.monotonic() >= until:
                        return found

            batches._try_get_data = ask_often  # type: ignore[attr-defined] # noqa: SLF001
        return batches


def start_server() -> None:
    """Start the server that reader processes are forked from, unless it runs; this waits for nothing.

    It blocks SIGTERM, as its children do: who stops a training sends it to all of its processes, and the last batches
    before the checkpoint still have to be read. Readers end with this process, however it ends.
    """
    forkserver.set_forkserver_preload([reader_process.__name__])
    resource_tracker.ensure_running()  # the server's start would start it, and that unblocks SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a new program keeps what is blocked
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _lost(message: str) -> str:
    if "timed out" in message:
        return (
            "no batch was read within spec.experimental.rendezvous.timeoutSeconds"
            "; hint: check that spec.data.path's storage answers, "
            "then start again"
        )
    pids = _PIDS.search(message)
    which = f"reader process {pids[1].strip(', ')}" if pids else "a reader process"
    return (
        f"{which} of this rank was killed, most often for lack of memory (see `dmesg`); hint: lower "
        "spec.experimental.data.readerProcesses or batchSizePerDevice, or raise the memory limit, then start again"
    )

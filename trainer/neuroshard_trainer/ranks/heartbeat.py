"""A thread of every rank that notices a lost rank, also while the main thread hangs in native code.

All ranks exchange one number every second over a gloo group that nothing else uses. A rank that was killed closes its
connections, so the exchange fails at once; one that was stopped or lost its network lets it run into its timeout. It is
named by a roll call of the others, if servers are among the ranks. A survivor whose main thread does not end by its own
error within a grace period, since it waits in a CUDA kernel for the lost rank, is ended from the thread: 15 s after the
loss at the latest.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from neuroshard_api.process.errors import ANOTHER_PROCESS, PeerLostError

from neuroshard_trainer.errors import StoppedError
from neuroshard_trainer.ranks.peers import Peers
from neuroshard_trainer.ranks.process import new_group

PERIOD_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
"""How long a rank may be silent. Reading data or writing a checkpoint does not silence one: the thread goes on."""
GRACE_SECONDS = 3.0
"""What the main thread has to end by itself, with an error of its own that has more to tell."""


def end_process(error: PeerLostError) -> None:
    """End this process with an error's sentence and code, whatever its other threads do."""
    sys.stdout.flush()
    sys.stderr.write(f"error: rank {os.environ.get('RANK', '0')}: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


class Heartbeat:
    """The exchange, for as long as the block lasts; all ranks must enter it, and leave it together or by an error.

    Args:
        when: what is going on, for the message.
        peers: all ranks. If unset: a lost one has no name.
        on_loss: called on the thread when another rank is lost and this process has not ended in the grace period.
    """

    def __init__(
        self,
        when: Callable[[], str],
        *,
        peers: Peers | None = None,
        on_loss: Callable[[PeerLostError], None] = end_process,
    ) -> None:
        self._when = when
        self._peers = peers
        self._on_loss = on_loss
        self._closing = threading.Event()
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Make the group, and begin. A single rank has nobody to lose."""
        if dist.get_world_size() > 1:
            self._group = new_group(TIMEOUT_SECONDS)
            if self._peers is not None:
                self._store = dist.distributed_c10d._get_default_store().clone()  # noqa: SLF001 - for the thread alone
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End once all ranks leave; or, where an error ends this process, leave the others to notice."""
        if kind is None or kind is StoppedError:  # an orderly stop, which all ranks come to
            self._closing.set()
            if self._thread.is_alive():
                self._thread.join()
        else:
            self._is_abandoned = True

    def _beat(self) -> None:
        num_closing = 0
        begin = time.monotonic()
        try:
            while num_closing < dist.get_world_size():
                self._closing.wait(PERIOD_SECONDS)
                begin = time.monotonic()
                closing = torch.tensor([int(self._closing.is_set())])
                dist.all_reduce(closing, group=self._group)
                num_closing = int(closing)
        except (RuntimeError, ValueError) as error:
            noticed = time.monotonic()
            reason = str(error).strip().splitlines()[0]
            lost = ANOTHER_PROCESS
            if self._peers is not None:
                if noticed - begin > TIMEOUT_SECONDS / 2:  # a rank that has ended shows at once
                    self._peers.call_roll(self._store)
                lost = self._peers.lost(reason)
            # The main thread ends the process meanwhile, if it can.
            time.sleep(max(0.0, noticed + GRACE_SECONDS - time.monotonic()))
            if not self._is_abandoned:
                self._on_loss(PeerLostError.of(self._when(), f"no heartbeat: {reason}", lost))

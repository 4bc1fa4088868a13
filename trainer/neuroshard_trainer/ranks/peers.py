"""Who the ranks of a job with embedding servers are, so that those that lose one can name it.

Gloo's errors have the address of the rank that closed a connection: in a cluster that is the address of a pod. Ranks of
one host have one address, and there the processes that have ended tell. A rank that is silent closes nothing: it is the
one that does not answer when the others call the roll.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist
from neuroshard_api.process.errors import ANOTHER_PROCESS
from torch._C._distributed_c10d import Store

from neuroshard_trainer.ranks.agreement import gathered

_ADDRESS = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+")
"""How gloo writes an address."""
_ENDED = ("Z", "X")
"""States of processes that have ended and whose parents have not asked for them."""
_SEEN_WITHIN_S = 0.5
"""From the end of a process's connections to its own."""
_POLL_S = 0.02
_ROLL_CALL_S = 1.5
"""From the call of the first rank to the last answer: ranks that wait for a silent one give up at about one time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A rank, as it is found from outside."""

    rank: int
    server: str | None
    """Name of a process of an embedding server. None: it is a trainer's."""
    host: str
    """Name of its host, which in a pod is the pod's."""
    address: str
    """Its host's, as gloo resolves it. Empty: the name does not resolve."""
    pid: int
    processes: str
    """Where its pid counts: the processes of a host, or of a container."""

    def __str__(self) -> str:
        """Return its name in a sentence."""
        return f"rank {self.rank}, {self.server or 'a trainer'} on {self.host},"


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """All ranks."""

    ranks: tuple[Peer, ...]
    own: int
    silent: list[Peer] = field(default_factory=list)
    """Ranks that did not answer the roll call."""

    @classmethod
    def met(cls, group: dist.ProcessGroup, *, server: str | None) -> "Peers":
        """Tell the other ranks who this one is. All ranks must call this."""
        host = socket.gethostname()
        try:
            address = socket.gethostbyname(host)
        except OSError:
            address = ""
        own = Peer(
            rank=dist.get_rank(),
            server=server,
            host=host,
            address=address,
            pid=os.getpid(),
            processes=str(Path("/proc/self/ns/pid").readlink()),
        )
        return cls(ranks=tuple(gathered(own, group)), own=own.rank)

    def lost(self, reason: str) -> str:
        """Return the name, for a sentence, of the ranks that an error of the transport is about."""
        addresses = set(_ADDRESS.findall(reason))
        there = [peer for peer in self.ranks if peer.rank != self.own and peer.address in addresses]
        if self.silent:  # those that have ended since did so because of it
            there = self.silent
        elif {peer.processes for peer in there} == {self.ranks[self.own].processes}:
            there = _ended(there)
        is_one_server = len({peer.processes for peer in there}) == 1 and all(peer.server for peer in there)
        return str(there[0]) if len(there) == 1 or is_one_server else ANOTHER_PROCESS

    def call_roll(self, store: Store) -> None:
        """Find out which ranks are silent, once a rank was. The others all call this at about the same time.

        Args:
            store: that nothing else uses. One that does not answer either is not waited for.
        """
        answered: set[int] = set()
        caller = threading.Thread(target=self._call, args=(store, answered), name="roll call", daemon=True)
        caller.start()
        caller.join(2 * _ROLL_CALL_S)
        if self.own in answered and not caller.is_alive():
            self.silent.extend(peer for peer in self.ranks if peer.rank not in answered)

    def _call(self, store: Store, answered: set[int]) -> None:
        """Answer, and collect the answers of the others for a while."""
        store.set(_key(self.own), "")
        until = time.monotonic() + _ROLL_CALL_S
        while len(answered) < len(self.ranks) and time.monotonic() < until:
            answered.update(peer.rank for peer in self.ranks if store.check([_key(peer.rank)]))
            time.sleep(_POLL_S)


def _key(rank: int) -> str:
    """Return the key by which a rank answers the roll call."""
    return f"answers/{rank}"


def _ended(peers: Sequence[Peer]) -> list[Peer]:
    """Return the processes of this host that have ended."""
    until = time.monotonic() + _SEEN_WITHIN_S
    found: list[Peer] = []
    while not found and time.monotonic() < until:
        found = [peer for peer in peers if _has_ended(peer.pid)]
        time.sleep(0 if found else _POLL_S)
    return found


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in _ENDED
    except OSError:
        return True

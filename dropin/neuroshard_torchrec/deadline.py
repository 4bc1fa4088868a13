"""Code of the user with collectives in it: what fails on one rank ends it on all, each with a sentence.

A rank that failed meets the others in no collective any more, and they wait in one of the user's. So ranks write how
they ended into the store of the process group, where a thread of each reads it. A rank inside a collective cannot be
interrupted: the thread prints the sentence and ends the process. All others raise it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import torch.distributed as dist
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_torchrec.agreement import attempt
from neuroshard_torchrec.errors import DropInError

Result = TypeVar("Result")

GRACE_SECONDS = 5.0
"""How long a rank may go on after the first that failed: it may have the same error in a moment."""
_POLL_SECONDS = 0.1
_calls = count()
"""Equal on all ranks, which make the same calls: keys of one call are never those of another."""


def finish_together(work: Callable[[], Result], *, what: str, limit_seconds: float | None) -> Result:
    """Return this rank's result of the user's code once all ranks have theirs. All ranks of the world must call this.

    Args:
        work: may hold collectives.
        what: for messages, as ``make of plan 'ours'``.
        limit_seconds: within which every rank has to finish. None: there is no limit.

    Raises:
        DropInError: the same on all ranks, if one of them has an error or does not finish in time. A rank that is then
            inside a collective ends with exit code 7 and the sentence on stderr.
    """
    board = _Board(f"neuroshard/{next(_calls)}")
    watch = _Watch(board, what, limit_seconds)
    thread = threading.Thread(target=watch.run, name=f"deadline of {what}", daemon=True)
    thread.start()
    try:
        result, problem = attempt(work)
    except BaseException as error:  # the script ends this rank, and the others need not wait for it
        watch.finished.set()
        with suppress(dist.DistError):
            board.write(f"{type(error).__name__}: {error}")
        raise
    watch.finished.set()
    thread.join()
    board.write("" if problem is None else str(problem))
    first = board.first_problem(None if limit_seconds is None else watch.until)
    if first:
        raise DropInError(f"{what}: {first}")
    return result  # type: ignore[return-value] # without an error there is one


@dataclass(frozen=True, slots=True)
class _End:
    """How one rank ended."""

    rank: int
    order: int
    """The first to end has 1: what fails later may fail because of it."""
    problem: str
    """Empty: it has its result."""


class _Board:
    """How each rank ended, in the store of the default process group."""

    def __init__(self, name: str) -> None:
        # A client of its own: one that waits for a key of a collective lets no other call pass.
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
        self._store = dist.PrefixStore(name, store.clone())  # type: ignore[attr-defined] # torch does not say so
        self.rank, self._world_size = dist.get_rank(), dist.get_world_size()

    def write(self, problem: str) -> None:
        """Publish this rank's end."""
        self._store.set(str(self.rank), f"{self._store.add('order', 1)} {problem}")

    def ends(self) -> list[_End]:
        """Return the ranks that have ended, in this order."""
        there = [rank for rank in range(self._world_size) if self._store.check([str(rank)])]
        texts = {rank: self._store.get(str(rank)).decode().partition(" ") for rank in there}
        found = (_End(rank, int(order), problem) for rank, (order, _, problem) in texts.items())
        return sorted(found, key=lambda end: end.order)

    def first_problem(self, until: float | None) -> str:
        """Wait for all ranks, and return the sentence of the first that failed; empty: none did.

        Args:
            until: time by the monotonic clock, and twice the grace, that is waited. None: as long as it takes.
        """
        try:
            while len(ends := self.ends()) < self._world_size:
                if until is not None and time.monotonic() > until + 2 * GRACE_SECONDS:
                    break
                time.sleep(_POLL_SECONDS)
        except dist.DistError as error:
            return f"the store of the process group does not answer, so that another rank has ended ({error})"
        failed = next((end for end in ends if end.problem), None)
        if failed is not None:
            return f"rank {failed.rank}: {failed.problem}"
        missing = set(range(self._world_size)) - {end.rank for end in ends}
        return f"rank {min(missing)} does not answer; its log has the reason" if missing else ""


class _Watch:
    """Ends this process where it is still at work after another rank failed, or after the limit."""

    def __init__(self, board: _Board, what: str, limit_seconds: float | None) -> None:
        self._board = board
        self._what = what
        self._limit_seconds = limit_seconds
        self.until = time.monotonic() + (limit_seconds or 0.0)
        self.finished = threading.Event()
        """Of the work on this rank."""

    def run(self) -> None:
        """Watch until this rank has finished."""
        while not self.finished.wait(_POLL_SECONDS):
            try:
                failed = next((f"rank {end.rank}: {end.problem}" for end in self._board.ends() if end.problem), "")
            except dist.DistError as error:
                failed = f"the store of the process group does not answer ({error})"
            if failed and not self.finished.wait(GRACE_SECONDS):
                self._end(failed)
            if not failed and self._limit_seconds is not None and time.monotonic() > self.until:
                self._end(f"rank {self._board.rank}: {self._own_problem}")

    @property
    def _own_problem(self) -> str:
        return "was still at work" if self._limit_seconds is None else f"is not done after {self._limit_seconds:g} s"

    def _end(self, problem: str) -> None:
        with suppress(dist.DistError):
            self._board.write(self._own_problem)
        sys.stderr.write(f"error: rank {self._board.rank}: {self._what}: {problem}\n")
        sys.stderr.flush()
        os._exit(ExitCode.PEER_LOST)

"""Sessions of the samples of a block: which are held out together, and which stay together in an epoch's order.

A run is at most ``run`` consecutive samples of one session, counted from its first sample in the block. Training
permutes runs and not samples, so that lists which repeat within a session are next to each other in a batch, while one
batch sees few samples of one session.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from neuroshard_trainer.data.samples import IndexArray, ranges

MASK = 0xFFFFFFFFFFFFFFFF
_INCREMENT = 0x9E3779B97F4A7C15
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSessions:
    """Session and time of the samples of one block, in stored order."""

    ids: IndexArray
    """[samples] equal for samples of one session, in all blocks."""
    times: IndexArray
    """[samples] orders the samples of a session; equal times keep the stored order."""

    def __len__(self) -> int:
        return len(self.ids)


@runtime_checkable
class SessionSource(Protocol):
    """A data set whose samples come in sessions."""

    def sessions(self, block: int) -> BlockSessions:
        """Return the sessions of a block. Raises DataError, naming the place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sessions:
    """The sessions of a data set, and how training keeps their samples together.

    Args:
        source: knows them.
        run: maximum samples of a run. 0: whole sessions.
    """

    source: SessionSource
    run: int

    def held_out(self, block: int, *, share: float, seed: int) -> NDArray[np.bool_]:
        """Return [samples] whether each sample's session is held out: by its hash, whatever block it is in."""
        return chosen(self.source.sessions(block).ids, share=share, seed=seed)

    def shuffled(self, block: int, rows: IndexArray, rng: np.random.Generator) -> IndexArray:
        """Return rows of a block in the order of training: the runs of their sessions, permuted."""
        found = self.source.sessions(block)
        return shuffled_runs(rows, found.ids[rows], found.times[rows], run=self.run, rng=rng)


def chosen(ids: IndexArray, *, share: float, seed: int) -> NDArray[np.bool_]:
    """Return [samples] whether a session is in a share of all sessions, drawn by SplitMix64's finalizer of its id."""
    bits = ids.astype(np.uint64) + np.uint64((seed + 1) * _INCREMENT & MASK)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        bits = (bits ^ (bits >> np.uint64(shift))) * multiplier
    bits ^= bits >> np.uint64(31)
    is_chosen: NDArray[np.bool_] = bits.astype(np.float64) < share * 2.0**64
    return is_chosen


def shuffled_runs(
    rows: IndexArray, ids: IndexArray, times: IndexArray, *, run: int, rng: np.random.Generator
) -> IndexArray:
    """Return rows with the samples of a run next to each other, by time, and the runs permuted.

    Args:
        rows: in stored order.
        ids: [rows] sessions.
        times: [rows]
        run: maximum samples of a run. 0: whole sessions.
        rng: draws the permutation.
    """
    by_session, starts, lengths = _by_session(ids, times)
    if run:
        counts = -(-lengths // run)
        before = run * ranges(np.zeros_like(counts), counts)  # in the session
        starts = np.repeat(starts, counts) + before
        lengths = np.minimum(np.repeat(lengths, counts) - before, run)
    runs = np.argsort(rng.permutation(len(starts)))
    places = ranges(starts[runs], lengths[runs])
    return rows[places if by_session is None else by_session[places]]


def _by_session(ids: IndexArray, times: IndexArray) -> tuple[IndexArray | None, IndexArray, IndexArray]:
    """Return an order of the samples, and in it the start and the length of each session, by the sessions' ids.

    In the order the samples of a session are next to each other by time, and equal times as they are stored. None: the
    stored order is one, as of a clustered log.
    """
    starts, lengths = _stretches(ids)
    sessions = np.argsort(ids[starts], kind="stable")
    sorted_ids = ids[starts][sessions]
    is_apart = bool((sorted_ids[1:] != sorted_ids[:-1]).all())
    if is_apart and bool(((ids[1:] != ids[:-1]) | (times[1:] >= times[:-1])).all()):
        return None, starts[sessions], lengths[sessions]
    order = np.lexsort((times, ids))  # stable
    return order, *_stretches(ids[order])


def _stretches(ids: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the start and the length of each stretch of equal ids."""
    opens = np.ones(len(ids), dtype=np.bool_)
    opens[1:] = ids[1:] != ids[:-1]
    starts = np.flatnonzero(opens)
    return starts, np.diff(starts, append=len(ids))

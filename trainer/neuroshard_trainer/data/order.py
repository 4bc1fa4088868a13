"""Which samples come when: the split into training and validation, and the order of an epoch. Reads no samples.

The order is one for all ranks and reader processes and does not depend on their number, so that training goes on with
the very next sample after a restart with more or fewer of them. Blocks are shuffled, and the samples in each block.
A rank's part of a global batch is a stretch of this order: the blocks within it are read by no other rank, only the two
at its ends are shared with its neighbors.

Where samples come in sessions, whole sessions are held out, and a block shuffles runs instead of samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_trainer.data.recent import Recent
from neuroshard_trainer.data.samples import IndexArray
from neuroshard_trainer.data.sessions import Sessions

WHOLE_PERCENT = 100
_SPLIT, _BLOCKS, _ROWS = range(3)  # what a random stream is for
_KEPT_PERMUTATIONS = 8  # a block's order is asked for again by the batches that begin and end in it


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRows:
    """Some samples of one block."""

    block: int
    rows: IndexArray


class SampleOrder:
    """The order of all samples of one data set.

    Args:
        block_sizes: samples of each block.
        validation_percent: share held out, the same samples of each block in every epoch.
        seed: of split and order.
        shuffle: whether an epoch's order is drawn again; else samples come as they are stored.
        max_validation: most samples that are held out; they come from blocks at even distances. None: no limit.
        sessions: of the samples. If unset: samples are held out and shuffled one by one.
    """

    def __init__(
        self,
        block_sizes: Sequence[int] | IndexArray,
        *,
        validation_percent: int,
        seed: int,
        shuffle: bool,
        max_validation: int | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self._seed = seed
        self._shuffle = shuffle
        self._sessions = sessions
        self._sizes = np.asarray(block_sizes, dtype=np.int64)
        self._session_share: float | None = None
        """Share of the sessions that is held out. None: sessions do not decide what is."""
        if sessions is not None and 0 < validation_percent < WHOLE_PERCENT:
            share = validation_percent / WHOLE_PERCENT
            if max_validation is not None:
                share = min(share, max_validation / max(1, int(self._sizes.sum())))
            self._session_share = share
            counts = [
                np.count_nonzero(sessions.held_out(block, share=share, seed=seed)) for block in range(len(self._sizes))
            ]
            held_out = np.array(counts, dtype=np.int64)
            self._training = self._sizes - held_out  # what a limit leaves out is not trained on either
            self._held_out = _limited(held_out, max_validation)
        else:
            before = np.concatenate(([0], np.cumsum(self._sizes)))
            # Whole samples per block, and the exact share over all blocks.
            self._held_out = _thinned(np.diff(before * validation_percent // WHOLE_PERCENT), max_validation)
            self._training = self._sizes - self._held_out
        self._validation_ends = np.cumsum(self._held_out)
        self.num_training = int(self._training.sum())
        self.num_validation = int(self._held_out.sum())
        self._epoch = Recent(self._blocks_of, capacity=1)
        self._splits = Recent(self._split, capacity=_KEPT_PERMUTATIONS)
        self._rows = Recent(self._training_rows, capacity=_KEPT_PERMUTATIONS)

    def training(self, start: int, count: int) -> Iterator[BlockRows]:
        """Yield ``count`` training samples, counted from the first of epoch 0, through as many epochs as needed."""
        while count > 0:
            epoch, offset = divmod(start, self.num_training)
            blocks, ends = self._epoch(epoch)
            at = int(np.searchsorted(ends, offset, side="right"))
            block = int(blocks[at])
            skip = offset - (int(ends[at - 1]) if at else 0)
            rows = self._rows((epoch, block))[skip : skip + count]
            yield BlockRows(block=block, rows=rows)
            start += len(rows)
            count -= len(rows)

    def validation(self, start: int, count: int) -> Iterator[BlockRows]:
        """Yield ``count`` held-out samples from the ``start``-th on, in stored order; fewer where they end."""
        stop = min(start + count, self.num_validation)
        while start < stop:
            block = int(np.searchsorted(self._validation_ends, start, side="right"))
            skip = start - int(self._validation_ends[block] - self._held_out[block])
            rows = self._splits(block)[0][skip : skip + stop - start]
            yield BlockRows(block=block, rows=rows)
            start += len(rows)

    def _blocks_of(self, epoch: int) -> tuple[IndexArray, IndexArray]:
        """Return the blocks in an epoch's order, and at which sample of the epoch each ends."""
        blocks = np.arange(len(self._sizes))
        if self._shuffle:
            np.random.default_rng((self._seed, _BLOCKS, epoch)).shuffle(blocks)
        return blocks, np.cumsum(self._training[blocks])

    def _training_rows(self, epoch_and_block: tuple[int, int]) -> IndexArray:
        epoch, block = epoch_and_block
        rows = self._splits(block)[1]
        if not self._shuffle:
            return rows
        rng = np.random.default_rng((self._seed, _ROWS, epoch, block))
        if self._sessions is None or self._sessions.run == 1:
            return rng.permutation(rows)
        return self._sessions.shuffled(block, rows, rng)

    def _split(self, block: int) -> tuple[IndexArray, IndexArray]:
        """Return the held-out and the training samples of a block, each in stored order."""
        if self._session_share is not None:
            assert self._sessions is not None, "a share of sessions is of some sessions"
            is_held_out = self._sessions.held_out(block, share=self._session_share, seed=self._seed)
            return np.flatnonzero(is_held_out), np.flatnonzero(~is_held_out)
        size, held_out = int(self._sizes[block]), int(self._held_out[block])
        if held_out in {0, size}:
            everything = np.arange(size)
            return everything[:held_out], everything[held_out:]
        shuffled = np.random.default_rng((self._seed, _SPLIT, block)).permutation(size)
        return np.sort(shuffled[:held_out]), np.sort(shuffled[held_out:])


def _thinned(held_out: IndexArray, maximum: int | None) -> IndexArray:
    """Return the number of held-out samples of each block, at most this many in all."""
    total = int(held_out.sum())
    if maximum is None or total <= maximum:
        return held_out
    stride = -(-total // maximum)
    kept = np.zeros_like(held_out)
    some = np.flatnonzero(held_out)[::stride]
    kept[some] = held_out[some]
    return _limited(kept, maximum)


def _limited(held_out: IndexArray, maximum: int | None) -> IndexArray:
    """Return the number of held-out samples of each block up to a limit, from the first block on."""
    if maximum is None:
        return held_out
    limited: IndexArray = np.clip(maximum - (np.cumsum(held_out) - held_out), 0, held_out)
    return limited

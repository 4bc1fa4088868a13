"""Which samples come when: the split into training and validation, and the order of an epoch. Reads no samples.

The order is one for all ranks and does not depend on their number, so that training goes on with the very next sample
after a restart with more or fewer of them. Blocks are shuffled, and the samples in each block.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_trainer.data.samples import IndexArray

_SPLIT, _BLOCKS, _ROWS = range(3)  # what a random stream is for


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
        shuffle: whether an epoch's order is drawn anew; else samples come as they are stored.
    """

    def __init__(self, block_sizes: Sequence[int], *, validation_percent: int, seed: int, shuffle: bool) -> None:
        self._seed = seed
        self._shuffle = shuffle
        self._sizes = block_sizes
        before = np.concatenate(([0], np.cumsum(np.array(block_sizes, dtype=np.int64))))
        # Whole samples per block, and the exact share over all blocks.
        held_out = np.diff(before * validation_percent // 100)
        self._held_out = held_out.tolist()
        self._training = (np.array(block_sizes, dtype=np.int64) - held_out).tolist()
        self.num_training = sum(self._training)
        self.num_validation = sum(self._held_out)
        self._epoch: tuple[int, IndexArray, list[int]] | None = None

    def training(self, start: int, count: int) -> Iterator[BlockRows]:
        """Yield ``count`` training samples, counted from the first of epoch 0, through as many epochs as needed."""
        while count > 0:
            epoch, offset = divmod(start, self.num_training)
            blocks, ends = self._blocks_of(epoch)
            at = bisect_right(ends, offset)
            block = int(blocks[at])
            skip = offset - (ends[at - 1] if at else 0)
            rows = self._training_rows(epoch, block)[skip : skip + count]
            yield BlockRows(block=block, rows=rows)
            start += len(rows)
            count -= len(rows)

    def validation(self, start: int, count: int) -> Iterator[BlockRows]:
        """Yield ``count`` held-out samples from the ``start``-th on, in stored order; fewer where they end."""
        ends = np.cumsum(self._held_out)
        stop = min(start + count, self.num_validation)
        while start < stop:
            block = int(np.searchsorted(ends, start, side="right"))
            skip = start - int(ends[block]) + self._held_out[block]
            rows = self._split(block)[0][skip : skip + stop - start]
            yield BlockRows(block=block, rows=rows)
            start += len(rows)

    def _blocks_of(self, epoch: int) -> tuple[IndexArray, list[int]]:
        """Return the blocks in an epoch's order, and at which sample of the epoch each ends."""
        if self._epoch is None or self._epoch[0] != epoch:
            blocks = np.arange(len(self._sizes))
            if self._shuffle:
                np.random.default_rng((self._seed, _BLOCKS, epoch)).shuffle(blocks)
            ends = np.cumsum(np.array(self._training, dtype=np.int64)[blocks]).tolist()
            self._epoch = (epoch, blocks, ends)
        return self._epoch[1:]

    def _training_rows(self, epoch: int, block: int) -> IndexArray:
        rows = self._split(block)[1]
        return np.random.default_rng((self._seed, _ROWS, epoch, block)).permutation(rows) if self._shuffle else rows

    def _split(self, block: int) -> tuple[IndexArray, IndexArray]:
        """Return the held-out and the training samples of a block, each in stored order."""
        shuffled = np.random.default_rng((self._seed, _SPLIT, block)).permutation(self._sizes[block])
        held_out = self._held_out[block]
        return np.sort(shuffled[:held_out]), np.sort(shuffled[held_out:])

"""Contents of devices, each known by a number: what a device costs that holds certain shards, computed once.

A content is another one and a shard more; number 0 is the empty device and number 1 a device that cannot take the
shard. Shards added in another order are another content: sums of single precision depend on the order.
"""

import numpy as np
from neuroshard_costs.shards import FloatArray, IndexArray
from numpy.typing import NDArray

from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.step_cost import NUM_LEVELS, TIMES, TRAFFIC

EMPTY, FULL = 0, 1
UNKNOWN = -1
MOST_KINDS = 2**24


class DeviceContents:
    """All contents of one problem seen so far; only ever grows."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._number_of: dict[int, int] = {}
        self._size = FULL + 1
        self._sums: FloatArray = np.zeros((1024, problem.kinds.representation.shape[1]))
        self._memory_bytes: IndexArray = np.zeros(1024, dtype=np.int64)
        self._levels: FloatArray = np.zeros((1024, NUM_LEVELS))
        self._levels[FULL] = np.inf

    @property
    def levels(self) -> FloatArray:
        """[contents, levels] of a device; infinite for one that cannot take its shard."""
        return self._levels[: self._size]

    def grown(self, contents: IndexArray, kinds: IndexArray, asked: NDArray[np.bool_]) -> IndexArray:
        """Return [p, devices] the contents with one shard more, of a kind per row.

        FULL where not asked for or where memory does not suffice.

        Args:
            contents: [p, devices].
            kinds: [p].
            asked: [p, devices].
        """
        grown: IndexArray = np.full(contents.shape, FULL)
        keys, position = np.unique((contents * MOST_KINDS + kinds[:, None])[asked], return_inverse=True)
        numbers = np.array([self._number_of.get(key, UNKNOWN) for key in keys.tolist()], dtype=np.int64)
        unknown = np.flatnonzero(numbers == UNKNOWN)
        if len(unknown):
            numbers[unknown] = self._add(*np.divmod(keys[unknown], MOST_KINDS))
            self._number_of.update(zip(keys[unknown].tolist(), numbers[unknown].tolist(), strict=True))
        grown[asked] = numbers[position]
        return grown

    def _add(self, contents: IndexArray, kinds: IndexArray) -> IndexArray:
        """Return [n] numbers of new contents: others with one shard more."""
        table = self._problem.kinds
        memory_bytes = self._memory_bytes[contents] + table.memory_bytes[kinds]
        fitting = np.flatnonzero(memory_bytes <= self._problem.memory.shard_capacity_bytes)
        contents, kinds = contents[fitting], kinds[fitting]
        end = self._size + len(fitting)
        self._reserve(end)
        new = slice(self._size, end)
        self._sums[new] = self._sums[contents] + table.representation[kinds]
        self._memory_bytes[new] = memory_bytes[fitting]
        self._levels[new, TRAFFIC] = self._levels[contents, TRAFFIC] + table.traffic[kinds]
        self._levels[new, TIMES] = self._problem.pass_levels(self._sums[new], in_bulk=True)
        numbers: IndexArray = np.full(len(memory_bytes), FULL)
        numbers[fitting] = np.arange(self._size, end)
        self._size = end
        return numbers

    def _reserve(self, size: int) -> None:
        """Make room by doubling, so that adding few at a time stays cheap."""
        if size <= len(self._levels):
            return
        for name in ("_sums", "_memory_bytes", "_levels"):
            old = getattr(self, name)
            grown = np.zeros((max(size, 2 * len(old)), *old.shape[1:]), dtype=old.dtype)
            grown[: self._size] = old[: self._size]
            setattr(self, name, grown)

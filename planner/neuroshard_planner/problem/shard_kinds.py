"""Distinct shards of a problem as columns of numbers. Makes none of these numbers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from neuroshard_costs.shards import COLUMNS, FloatArray, IndexArray

from neuroshard_planner.problem.host_tables import ON_DEVICE
from neuroshard_planner.problem.step_cost import Collective


class ShardSize(NamedTuple):
    """A rectangle of a unit, and what looks it up; two shards of one unit and size are alike."""

    num_rows: int
    """Of a unit cut by rows: those of its first block."""
    num_columns: int
    family: int = COLUMNS
    """Position in FAMILIES."""
    kernel: int = ON_DEVICE
    """Position in KERNELS."""
    cache_load_factor: float = 0.0
    """Rows of the cache over those of the shard."""


_KIND_COLUMNS = (
    "_unit",
    "_num_rows",
    "_num_columns",
    "_family",
    "_kernel",
    "_load_factor",
    "_memory_bytes",
    "_host_bytes",
    "_traffic",
    "_representation",
)


class ShardKinds:
    """Distinct shards as columns of numbers, one row per kind; only ever grows."""

    def __init__(self, num_representation: int) -> None:
        self._size = 0
        self._unit: IndexArray = np.empty(64, dtype=np.int64)
        self._num_rows = np.empty_like(self._unit)
        self._num_columns = np.empty_like(self._unit)
        self._family = np.empty_like(self._unit)
        self._kernel = np.empty_like(self._unit)
        self._load_factor: FloatArray = np.empty(64)
        self._memory_bytes = np.empty_like(self._unit)
        self._host_bytes = np.empty_like(self._unit)
        self._traffic: FloatArray = np.empty((64, len(Collective)))
        self._representation: FloatArray = np.empty((64, num_representation))

    def __len__(self) -> int:
        return self._size

    @property
    def unit(self) -> IndexArray:
        """[k] position of the unit in the problem."""
        return self._unit[: self._size]

    @property
    def num_rows(self) -> IndexArray:
        """[k] rows of the shard."""
        return self._num_rows[: self._size]

    @property
    def num_columns(self) -> IndexArray:
        """[k] columns of the shard."""
        return self._num_columns[: self._size]

    @property
    def family(self) -> IndexArray:
        """[k] position in FAMILIES."""
        return self._family[: self._size]

    @property
    def kernel(self) -> IndexArray:
        """[k] position in KERNELS."""
        return self._kernel[: self._size]

    @property
    def load_factor(self) -> FloatArray:
        """[k] rows of the cache over those of the shard."""
        return self._load_factor[: self._size]

    @property
    def memory_bytes(self) -> IndexArray:
        """[k] all that the shard needs on its device."""
        return self._memory_bytes[: self._size]

    @property
    def host_bytes(self) -> IndexArray:
        """[k] what the shard has in its node's memory."""
        return self._host_bytes[: self._size]

    @property
    def traffic(self) -> FloatArray:
        """[k, collectives] what the shard adds to its device's traffic in each collective."""
        return self._traffic[: self._size]

    @property
    def representation(self) -> FloatArray:
        """[k, r] what the shard adds to its device's sum."""
        return self._representation[: self._size]

    def append(
        self,
        *,
        unit: IndexArray,
        sizes: Sequence[ShardSize],
        memory_bytes: IndexArray,
        host_bytes: IndexArray,
        traffic: FloatArray,
        representation: FloatArray,
    ) -> None:
        """Add kinds; room grows by doubling, so that adding few at a time stays cheap."""
        end = self._size + len(sizes)
        if end > len(self._unit):
            room = max(end, 2 * len(self._unit))
            for name in _KIND_COLUMNS:
                old = getattr(self, name)
                grown = np.empty((room, *old.shape[1:]), dtype=old.dtype)
                grown[: self._size] = old[: self._size]
                setattr(self, name, grown)
        new = slice(self._size, end)
        self._unit[new] = unit
        columns = (self._num_rows, self._num_columns, self._family, self._kernel, self._load_factor)
        for column, values in zip(columns, zip(*sizes, strict=True), strict=True):
            column[new] = values
        self._memory_bytes[new] = memory_bytes
        self._host_bytes[new] = host_bytes
        self._traffic[new] = traffic
        self._representation[new] = representation
        self._size = end

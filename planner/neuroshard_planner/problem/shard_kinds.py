"""Distinct shards of a problem as columns of numbers. Makes none of these numbers."""

from typing import Any, NamedTuple

import numpy as np
from neuroshard_costs.host_tables import ON_DEVICE
from neuroshard_costs.shards import COLUMNS, FloatArray, IndexArray
from neuroshard_costs.step_cost import Collective
from numpy.typing import NDArray


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


class ShardKinds:
    """Distinct shards as columns of numbers, one row for each of k kinds; only ever grows."""

    unit: IndexArray
    """[k] position of the unit in the problem."""
    num_rows: IndexArray
    """[k]"""
    num_columns: IndexArray
    """[k]"""
    family: IndexArray
    """[k] position in FAMILIES."""
    kernel: IndexArray
    """[k] position in KERNELS."""
    load_factor: FloatArray
    """[k] rows of the cache over those of the shard."""
    memory_bytes: IndexArray
    """[k] all that the shard needs on its device."""
    host_bytes: IndexArray
    """[k] what the shard has in its node's memory."""
    traffic: FloatArray
    """[k, collectives] what the shard adds to its device's traffic in each collective."""
    representation: FloatArray
    """[k, r] what the shard adds to its device's sum."""

    def __init__(self, num_representation: int) -> None:
        room, whole = 64, np.int64
        self._columns: dict[str, NDArray[Any]] = {
            **{name: np.empty(room, whole) for name in ("unit", "num_rows", "num_columns", "family", "kernel")},
            "load_factor": np.empty(room),
            **{name: np.empty(room, whole) for name in ("memory_bytes", "host_bytes")},
            "traffic": np.empty((room, len(Collective))),
            "representation": np.empty((room, num_representation)),
        }
        self._size = 0
        self._show()

    def __len__(self) -> int:
        return self._size

    def append(self, **columns: NDArray[Any]) -> None:
        """Add kinds, all columns of them; room grows by doubling, so that adding few at a time stays cheap."""
        end = self._size + len(columns["unit"])
        for name, column in self._columns.items():
            if end > len(column):
                grown = np.empty((max(end, 2 * len(column)), *column.shape[1:]), column.dtype)
                grown[: self._size] = column[: self._size]
                self._columns[name] = grown
            self._columns[name][self._size : end] = columns[name]
        self._size = end
        self._show()

    def _show(self) -> None:
        """Make every attribute a view of the rows in use."""
        for name, column in self._columns.items():
            setattr(self, name, column[: self._size])

"""Shards as columns of numbers: what the networks and the simulator read. Holds values, predicts nothing."""

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from neuroshard_api.tables import DataType, Optimizer
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

OPTIMIZERS = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD, Optimizer.ADAM)
"""Order of the codes in ShardArrays.optimizer; append only, trained networks depend on it."""

BYTES_PER_ELEMENT = {DataType.FP32: 4, DataType.FP16: 2, DataType.BF16: 2, DataType.INT8: 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardArrays:
    """n shards, one row each. A whole table is a shard with all its rows and columns."""

    num_rows: FloatArray
    """[n]"""
    num_columns: FloatArray
    """[n]"""
    pooling_factor: FloatArray
    """[n] mean lookups per sample that reach this shard."""
    bytes_per_element: FloatArray
    """[n] of the stored weights."""
    batch_size: FloatArray
    """[n] samples of the global batch; one value within a set."""
    optimizer: IndexArray
    """[n] position in OPTIMIZERS; one value within a set."""
    reuse_histogram: FloatArray
    """[n, 17] share of the distinct touched rows by hits per row in one global batch; rows sum to 1."""
    unique_rows: FloatArray
    """[n] distinct rows touched by one global batch."""

    def __len__(self) -> int:
        return len(self.num_rows)

    @property
    def lookups(self) -> FloatArray:
        """[n] rows read per global batch, repeats counted."""
        return self.batch_size * self.pooling_factor

    def take(self, index: IndexArray) -> Self:
        """Return the shards at these positions, repeats allowed."""
        return type(self)(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def slice_columns(shards: ShardArrays, index: IndexArray, num_columns: FloatArray) -> ShardArrays:
    """Return column slices of the shards at these positions: the same rows and lookups, another width each."""
    return replace(shards.take(index), num_columns=np.asarray(num_columns, dtype=np.float64))

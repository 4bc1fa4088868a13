"""Shards as columns of numbers: what an embedding kernel sees of them, however they were cut from tables."""

from dataclasses import dataclass, fields, replace
from typing import Self, TypeVar

import numpy as np
from neuroshard_api.documents.tables import DataType, Optimizer, Table
from neuroshard_api.sharding.kinds import Family
from numpy.typing import NDArray

from neuroshard_costs.arithmetic import expm1

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

OPTIMIZERS = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD, Optimizer.ADAM)
"""Order of the codes in ShardArrays.optimizer; append only, trained networks depend on it."""

DATA_TYPES = (DataType.FP32, DataType.FP16, DataType.BF16, DataType.INT8)
"""Order of the codes in ShardArrays.data_type; append only, trained networks depend on it."""

FAMILIES = (Family.COLUMNS, Family.ROWS, Family.NODE_ROWS, Family.REPLICATED)
"""Families by their codes."""

COLUMNS, ROWS, NODE_ROWS, REPLICATED = range(4)
"""Codes in ShardArrays.family: positions in FAMILIES."""

BYTES_PER_ELEMENT = {DataType.FP32: 4, DataType.FP16: 2, DataType.BF16: 2, DataType.INT8: 1}

INDEX_BYTES = 8  # a KeyedJaggedTensor holds 64-bit row ids
WEIGHT_BYTES = 4  # and, where lookups are weighted, an FP32 weight of each
GRADIENT_BYTES = 4  # per element, of the dense gradients of replicated tables: they are FP32
LENGTH_BYTES = 4  # and, of every sample and feature, a length of 32 bits (lengths_dtype), which travels as it is

NUM_CALLS = len(FAMILIES) * len(DATA_TYPES)
"""Kernel calls that a device may make in each direction: one for each family and data type."""

_TYPE_BYTES = np.array([BYTES_PER_ELEMENT[data_type] for data_type in DATA_TYPES], dtype=np.float64)
_STATE_BYTES = 4  # FBGEMM keeps optimizer state in FP32
_STATES_PER_COLUMN = {Optimizer.ADAGRAD: 1, Optimizer.ADAM: 2}
_STATES_PER_ROW = {Optimizer.ROWWISE_ADAGRAD: 1}

_Columns = TypeVar("_Columns", int, FloatArray, IndexArray)


def weights_bytes(table: Table, data_type: DataType | None = None) -> int:
    """Return the bytes of the weights of a whole table, in its own type or in another one."""
    return table.num_embeddings * table.embedding_dim * BYTES_PER_ELEMENT[data_type or table.data_type]


def state_row_bytes(optimizer: Optimizer, num_columns: _Columns) -> _Columns:
    """Return the bytes of optimizer state of one row of these many columns; every column shard keeps its own."""
    states = _STATES_PER_COLUMN.get(optimizer, 0) * num_columns + _STATES_PER_ROW.get(optimizer, 0)
    return _STATE_BYTES * states


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardArrays:
    """n shards, one row each. A whole table is a shard with all its rows and columns.

    A table that k features look up is one shard with k times the bags; a shard of some of a table's rows has all its
    bags and a part of its lookups.
    """

    num_rows: FloatArray
    """[n]"""
    num_columns: FloatArray
    """[n]"""
    bags: FloatArray
    """[n] vectors that one call returns: features times samples, or lookups of a sequence."""
    lookups: FloatArray
    """[n] rows read per call, repeats counted."""
    data_type: IndexArray
    """[n] position in DATA_TYPES, of the stored weights."""
    family: IndexArray
    """[n] position in FAMILIES. Shards of one family and data type on one device share a kernel call."""
    output_bytes_per_element: FloatArray
    """[n] of pooled vectors and of their gradients in the kernel; what travels may have another type."""
    optimizer: IndexArray
    """[n] position in OPTIMIZERS. Calls that were measured or simulated for training have one each."""
    reuse_histogram: FloatArray
    """[n, 17] share of the distinct touched rows by hits per row in one call; rows sum to 1."""
    unique_rows: FloatArray
    """[n] distinct rows touched by one call."""

    def __len__(self) -> int:
        return len(self.num_rows)

    @property
    def call(self) -> IndexArray:
        """[n] number of the kernel call among the NUM_CALLS that a device may make."""
        code: IndexArray = self.family * len(DATA_TYPES) + self.data_type
        return code

    @property
    def pooling_factor(self) -> FloatArray:
        """[n] mean lookups per bag."""
        return self.lookups / self.bags

    @property
    def filled_bags(self) -> FloatArray:
        """[n] expected bags with a lookup, for Poisson numbers of lookups per bag."""
        filled: FloatArray = self.bags * -expm1(-self.pooling_factor)
        return filled

    @property
    def bytes_per_element(self) -> FloatArray:
        """[n] of the stored weights."""
        size: FloatArray = _TYPE_BYTES[self.data_type]
        return size

    @property
    def row_bytes(self) -> FloatArray:
        """[n] of the weights of one row."""
        return self.num_columns * self.bytes_per_element

    @property
    def output_row_bytes(self) -> FloatArray:
        """[n] of one pooled vector, or of its gradient."""
        return self.num_columns * self.output_bytes_per_element

    @property
    def state_row_bytes(self) -> FloatArray:
        """[n] of the optimizer state of one row."""
        choices = [self.optimizer == code for code in range(len(OPTIMIZERS))]
        size: FloatArray = np.select(choices, [state_row_bytes(each, self.num_columns) for each in OPTIMIZERS])
        return size

    def take(self, index: IndexArray) -> Self:
        """Return the shards at these positions, repeats allowed."""
        return type(self)(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def of_family(self, family: IndexArray, *, num_columns: FloatArray) -> Self:
        """Return the shards with these widths [n], looked up with those of other families [n]."""
        return replace(self, family=family, num_columns=num_columns)

    def put(self, index: IndexArray, shards: Self) -> Self:
        """Return the shards with others [m] at these positions [m]."""
        columns = {field.name: getattr(self, field.name).copy() for field in fields(self)}
        for name, values in columns.items():
            values[index] = getattr(shards, name)
        return type(self)(**columns)


def slice_columns(shards: ShardArrays, index: IndexArray, num_columns: FloatArray) -> ShardArrays:
    """Return column slices of the shards at these positions: the same rows and lookups, another width each."""
    return replace(shards.take(index), num_columns=np.asarray(num_columns, dtype=np.float64))

"""From units and sizes to the table shards that a device looks up, and what they add to its traffic. Prices nothing.

Tables cut by rows are placed as equal shards, one for each block of rows; each stands for the fullest of them.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.sharding.kinds import num_row_parts

from neuroshard_costs.deduplication import sent_shares
from neuroshard_costs.exchanges import index_bytes, lookup_bytes
from neuroshard_costs.reuse.row_parts import fullest_part, hottest_row_lookups
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import (
    COLUMNS,
    FAMILIES,
    GRADIENT_BYTES,
    NODE_ROWS,
    OPTIMIZERS,
    REPLICATED,
    ROWS,
    FloatArray,
    IndexArray,
    ShardArrays,
)
from neuroshard_costs.step_cost import Collective


class Cuts:
    """The shards of a request's tables."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._whole = self._shard_arrays(request.global_batch_size)
        self._num_parts: FloatArray = np.array([num_row_parts(family, request.topology) for family in FAMILIES], float)
        tables = request.tables.tables
        self._num_features: IndexArray = np.array([table.num_features for table in tables])
        self._num_vectors: FloatArray = sent_shares(request) * np.array([table.num_vectors for table in tables])
        self._is_sequence = np.array([table.is_sequence for table in tables], dtype=np.bool_)
        self._lookup_bytes = lookup_bytes(tables)

    @cached_property
    def _local(self) -> ShardArrays:
        """[tables] as replicated: a device's own samples, and a kernel that leaves the update to a dense optimizer.

        That kernel writes gradients of the rows that SGD's reads and writes; it is priced as SGD's.
        """
        own = self._shard_arrays(self._request.batch_size_per_device)
        return replace(own, optimizer=np.full_like(own.optimizer, OPTIMIZERS.index(Optimizer.SGD)))

    @cached_property
    def _hottest_row(self) -> FloatArray:
        return hottest_row_lookups(self._request.tables, self._whole)

    def _shard_arrays(self, num_samples: int) -> ShardArrays:
        return shard_arrays(
            self._request.tables,
            global_batch_size=num_samples,
            optimizer=self._request.optimizer,
            output_data_type=self._request.memory.output_data_type,
        )

    @property
    def any_table(self) -> ShardArrays:
        """The first table, whole."""
        return self._whole.take(np.zeros(1, dtype=np.int64))

    def shards(
        self, tables: IndexArray, *, family: IndexArray, num_rows: FloatArray, column_share: FloatArray
    ) -> ShardArrays:
        """Return the shards of tables [n].

        Args:
            tables: [n] positions in the request's table set.
            family: [n] positions in FAMILIES.
            num_rows: [n] of a block, where the table is cut by rows.
            column_share: [n] columns over the table's.
        """
        shards = self._whole.take(tables)
        by_rows = np.flatnonzero((family == ROWS) | (family == NODE_ROWS))
        if len(by_rows):
            parts = fullest_part(
                shards.take(by_rows),
                num_rows=num_rows[by_rows],
                num_parts=self._num_parts[family[by_rows]],
                hottest_row=self._hottest_row[tables[by_rows]],
            )
            # A block has a partial sum of every bag, but of a sequence the rows of its own lookups alone.
            parts = replace(parts, bags=np.where(self._is_sequence[tables[by_rows]], parts.lookups, parts.bags))
            shards = shards.put(by_rows, parts)
        copies = np.flatnonzero(family == REPLICATED)
        if len(copies):
            shards = shards.put(copies, self._local.take(tables[copies]))
        return shards.of_family(family, num_columns=np.rint(shards.num_columns * column_share))

    def traffic(self, tables: IndexArray, shards: ShardArrays) -> FloatArray:
        """Return [n, collectives] what shards of tables [n] add to their device's traffic."""
        traffic = np.zeros((len(shards), len(Collective)))
        pooled_columns = self._num_vectors[tables] * shards.num_columns
        for family, collective in POOLED_BY.items():
            traffic[:, collective] = np.where(shards.family == family, pooled_columns, 0.0)
        sends_rows = (shards.family == ROWS) & self._is_sequence[tables]
        rows_per_sample = shards.lookups / self._request.global_batch_size
        traffic[sends_rows, Collective.ROW_SUMS] = 0.0
        traffic[:, Collective.SEQUENCE_ROWS] = np.where(sends_rows, rows_per_sample * shards.num_columns, 0.0)
        is_copy = shards.family == REPLICATED
        lists = (self._num_features[tables] * self._request.global_batch_size).astype(np.float64)
        num_bytes = index_bytes(shards.lookups, lists, self._lookup_bytes[tables])
        traffic[:, Collective.INDICES] = np.where(is_copy, 0.0, num_bytes)
        gradients = GRADIENT_BYTES * shards.num_rows * shards.num_columns
        traffic[:, Collective.GRADIENTS] = np.where(is_copy, gradients, 0.0)
        return traffic


POOLED_BY = {
    COLUMNS: Collective.POOLED_EMBEDDINGS,
    ROWS: Collective.ROW_SUMS,
    NODE_ROWS: Collective.NODE_ROW_SUMS,
}
"""The collective that brings vectors to their samples, by family; rows of sequences have one of their own."""

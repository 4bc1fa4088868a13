"""What shards in host memory add to a request's: time on the host link, and sizes of caches. Prices nothing else.

A shard runs with one of three kernels: weights in device memory, in host memory, or there and cached. All caches of a
plan that is searched keep the rows of equally many batches, since the tables of a kernel call share one cache; only
where constraints name a table's load factor it has another size.
"""

from functools import cached_property

import numpy as np
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.topology import HostMemory
from neuroshard_api.sharding.kinds import ComputeKernel
from numpy.typing import NDArray

from neuroshard_costs.reuse.cached_rows import CachedRows
from neuroshard_costs.shards import FloatArray, IndexArray, ShardArrays
from neuroshard_costs.simulator.host_memory import cached_seconds, direct_seconds

KERNELS = (ComputeKernel.FUSED, ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)
"""Kernels by their codes. Replicated tables have the first one's code."""

ON_DEVICE, DIRECT, CACHED = range(3)
"""Positions in KERNELS."""

_MS_PER_SECOND = 1000.0


def kernel_code(table: TablePlacement) -> int:
    """Return the position of a table's kernel in KERNELS."""
    return KERNELS.index(table.compute_kernel) if table.compute_kernel.is_on_host else ON_DEVICE


class HostTables:
    """The tables of one request that may be in host memory."""

    def __init__(self, request: PlanRequest, memory: HostMemory) -> None:
        self._request = request
        self._link = memory.link
        self._sharing = request.topology.devices_per_node

    @cached_property
    def caches(self) -> CachedRows:
        """What caches of the tables keep and miss."""
        return CachedRows.of(self._request.tables, global_batch_size=self._request.global_batch_size)

    @cached_property
    def _unique_rows(self) -> FloatArray:
        """[tables] of a global batch."""
        return self.caches.kept[:, 0]

    @cached_property
    def _asked_factors(self) -> FloatArray:
        """[tables] load factors that constraints name; 0 where they leave it to the search."""
        own = self._request.constraints.tables
        names = [table.name for table in self._request.tables.tables]
        return np.array([(own[name].cache_load_factor or 0.0) if name in own else 0.0 for name in names])

    @property
    def has_own_factor(self) -> NDArray[np.bool_]:
        """[tables] whether constraints name the load factor."""
        return self._asked_factors > 0

    def load_factors(self, size: int) -> FloatArray:
        """Return [tables] rows of a cache of this position in KEPT_BATCHES over those of its table.

        Where constraints name the factor, it is that one at every position.
        """
        return np.where(self.has_own_factor, self._asked_factors, self.caches.load_factors(size))

    def added_ms(
        self, tables: IndexArray, shards: ShardArrays, kernels: IndexArray, load_factors: FloatArray
    ) -> FloatArray:
        """Return [n, 2] forward and backward milliseconds that host memory adds to shards of tables [n].

        A block of rows misses its share of the table's distinct rows.

        Args:
            tables: [n] positions in the request's table set.
            shards: of these tables.
            kernels: [n] positions in KERNELS.
            load_factors: [n] rows of the cache over those of the shard, where there is one.
        """
        added = np.zeros((len(shards), 2))
        direct, cached = (np.flatnonzero(kernels == code) for code in (DIRECT, CACHED))
        if len(direct):
            added[direct] = direct_seconds(self._link, shards.take(direct), devices_per_node=self._sharing)
        if len(cached):
            own, factors = tables[cached], load_factors[cached]
            share = shards.unique_rows[cached] / np.maximum(self._unique_rows[own], 1.0)
            missed = self.caches.missed_rows(own, factors) * np.minimum(share, 1.0)
            added[cached] = cached_seconds(
                self._request.topology.device,
                self._link,
                shards.take(cached),
                missed_rows=missed,
                devices_per_node=self._sharing,
            )
        return added * _MS_PER_SECOND

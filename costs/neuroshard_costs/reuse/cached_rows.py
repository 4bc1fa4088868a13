"""Rows of tables in host memory that a cache in device memory keeps, and rows that a batch misses. Predicts no times.

A cache that replaces the row that was not used for longest keeps the rows of the last batches: of T batches U(T), the
distinct rows in T consecutive ones. The next batch misses the rows that none of them has, U(T + 1) - U(T) (the working
set; Denning and Schwartz, Properties of the working-set model, 1972). A cache of all rows misses none. One that is too
small for the rows of a single batch replaces them before they are used again; it is taken as no cache at all.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from neuroshard_api.documents.tables import TableSet

from neuroshard_costs.reuse.shard_arrays import unique_rows
from neuroshard_costs.shards import FloatArray, IndexArray

KEPT_BATCHES = (1, 2, 4, 8, 16, 32)
"""Batches of which a cache keeps the rows, where its size is chosen here."""

LOAD_FACTOR_STEP = 1e-6  # load factors are rounded up to a multiple of it


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedRows:
    """What caches of n whole tables keep and miss."""

    kept: FloatArray
    """[n, c] rows of caches that keep those of KEPT_BATCHES, and of one with all rows: ascending."""
    missed: FloatArray
    """[n, c] rows that a global batch misses in each."""
    lookups: FloatArray
    """[n] of a global batch."""

    @classmethod
    def of(cls, tables: TableSet, *, global_batch_size: int) -> Self:
        """Return the rows that caches of these tables keep and miss, in the order of the set.

        Args:
            tables: with their reuse, measured or by Zipf's law.
            global_batch_size: samples of all devices.
        """
        counts = sorted({*KEPT_BATCHES, *(count + 1 for count in KEPT_BATCHES)})
        touched = {count: unique_rows(tables, count * global_batch_size) for count in counts}
        rows = np.array([float(table.num_embeddings) for table in tables.tables])
        kept = np.stack([*(touched[count] for count in KEPT_BATCHES), rows], axis=1)
        missed = np.stack(
            [*(touched[count + 1] - touched[count] for count in KEPT_BATCHES), np.zeros_like(rows)], axis=1
        )
        lookups = np.array([table.pooling_factor for table in tables.tables]) * global_batch_size
        return cls(kept=np.maximum.accumulate(kept, axis=1), missed=np.maximum(missed, 0.0), lookups=lookups)

    def load_factors(self, choice: int) -> FloatArray:
        """Return [n] rows over those of the table of caches that keep KEPT_BATCHES[choice], rounded up."""
        shares = self.kept[:, choice] / self.kept[:, -1]
        factors: FloatArray = np.minimum(np.round(np.ceil(shares / LOAD_FACTOR_STEP) * LOAD_FACTOR_STEP, 9), 1.0)
        return factors

    def missed_rows(self, tables: IndexArray, load_factors: FloatArray) -> FloatArray:
        """Return [m] rows that a global batch misses in caches of these [m] load factors of tables [m].

        Between the sizes that are known, misses are taken as linear.
        """
        found = np.empty(len(tables))
        for row, (table, factor) in enumerate(zip(tables.tolist(), load_factors.tolist(), strict=True)):
            kept = self.kept[table]
            size = factor * kept[-1]
            fits_a_batch = size >= kept[0] * (1 - LOAD_FACTOR_STEP)
            found[row] = np.interp(size, kept, self.missed[table]) if fits_a_batch else self.lookups[table]
        return found

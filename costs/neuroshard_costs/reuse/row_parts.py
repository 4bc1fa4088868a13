"""Shards of some of a table's rows: how many lookups the fullest of equal blocks of rows serves. Predicts no times.

Rows are dealt out whole, so that hits per row stay as they are and every block has its share of the touched rows.
Lookups are not even: hot rows are few. Where rows are in no order, the fullest of k blocks has about

    N / k + sqrt(2 ln k v)      v: variance of a block's lookups, the sum of squared hits over the rows, over k
    N1 + (N - N1) / k           N1: lookups of the hottest row

of N lookups, whichever is more. docs/concepts/reuse.md compares both with drawn tables.
"""

from dataclasses import replace

import numpy as np
from neuroshard_api.documents.tables import TableSet

from neuroshard_costs.arithmetic import log, weighted_sum
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.reuse.shard_arrays import rank_cells, zipf_exponent
from neuroshard_costs.shards import FloatArray, ShardArrays


def fullest_part(
    tables: ShardArrays, *, num_rows: FloatArray, num_parts: FloatArray, hottest_row: FloatArray
) -> ShardArrays:
    """Return the shard of each whole table that serves most lookups, if its rows are cut into equal blocks.

    Args:
        tables: n whole tables.
        num_rows: [n] of a block.
        num_parts: [n] blocks.
        hottest_row: [n] lookups of the row with most.
    """
    share = 1.0 / num_parts
    top = np.minimum(hottest_row, tables.lookups)
    variance = np.maximum(_squared_hits(tables), top * top) * share
    spread = tables.lookups * share + np.sqrt(2.0 * log(num_parts) * variance)
    lookups = np.minimum(np.maximum(spread, top + (tables.lookups - top) * share), tables.lookups)
    # A block with less than a touched row in the mean has one where it is the fullest.
    touched = np.maximum(tables.unique_rows * share, np.minimum(tables.unique_rows, 1.0))
    return replace(
        tables, num_rows=num_rows, lookups=lookups, unique_rows=np.minimum(touched, np.minimum(num_rows, lookups))
    )


def hottest_row_lookups(tables: TableSet, shards: ShardArrays) -> FloatArray:
    """Return [n] expected lookups of the row of each whole table that has most.

    Where a table's reuse was measured: the mean hits of the highest bin that holds half a row or more.
    """
    lookups = shards.lookups
    exponents = np.array([zipf_exponent(table, tables) for table in tables.tables])
    _, rows, frequency = rank_cells(shards.num_rows, exponents)
    by_zipf = lookups * frequency[:, 0] / (frequency * rows).sum(axis=1)
    rows_from_top = np.cumsum(_rows_by_bin(shards)[:, ::-1], axis=1)
    highest = len(MEAN_HITS) - 1 - (rows_from_top >= 0.5).argmax(axis=1)  # noqa: PLR2004 - half a row
    by_histogram = _mean_hits(shards)[np.arange(len(shards)), highest]
    is_measured = np.array([table.reuse_histogram is not None for table in tables.tables])
    hottest: FloatArray = np.minimum(np.where(is_measured, by_histogram, by_zipf), lookups)
    return hottest


def _rows_by_bin(shards: ShardArrays) -> FloatArray:
    return shards.reuse_histogram * shards.unique_rows[:, None]


def _mean_hits(shards: ShardArrays) -> FloatArray:
    """Return [n, 17] mean hits of the rows of each bin: the open one has all lookups that the others leave."""
    rows = _rows_by_bin(shards)
    left = shards.lookups - weighted_sum(rows[:, :-1], MEAN_HITS[:-1])
    means = np.tile(MEAN_HITS, (len(shards), 1))
    means[:, -1] = np.maximum(MEAN_HITS[-1], left / np.maximum(rows[:, -1], 1.0))
    return means


def _squared_hits(shards: ShardArrays) -> FloatArray:
    """Return [n] the sum over all rows of their squared hits."""
    total: FloatArray = (_rows_by_bin(shards) * np.square(_mean_hits(shards))).sum(axis=1)
    return total

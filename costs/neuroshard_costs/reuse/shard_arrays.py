"""From declared tables to shard arrays: how often the rows of a table are hit in a batch. Predicts no times.

A table's reuse is either measured (its 17-bin histogram at the set's reuse batch size, rescaled to the wanted batch)
or derived from rows, lookups and a Zipf exponent. docs/concepts/reuse.md derives both.
"""

from functools import lru_cache

import numpy as np
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import REUSE_BINS, DataType, Optimizer, Table, TableSet

from neuroshard_costs.arithmetic import ordered_product, power, weighted_sum
from neuroshard_costs.reuse.hit_counts import MEAN_HITS, mix_poisson_bins, poisson_bins, rescaled_bins
from neuroshard_costs.shards import BYTES_PER_ELEMENT, COLUMNS, DATA_TYPES, OPTIMIZERS, FloatArray, ShardArrays

DEFAULT_ZIPF_EXPONENT = 0.85  # fitted to published traces: benchmarks/zipf_fit.py

_RANK_CELLS = 160  # cells of the rank grid; 10^13 rows in 160 cells are steps of 21 %
_CHUNK_TABLES = 2048  # bounds the memory of the rank grid to some 20 MB
_KNOWN_CHUNKS = 8  # of 300 KB


def shard_arrays(
    tables: TableSet,
    *,
    global_batch_size: int,
    optimizer: Optimizer,
    output_data_type: DataType = DataType.FP32,
) -> ShardArrays:
    """Return one whole-table shard per table, in the order of the set.

    A table that several features look up returns a bag per feature and sample, a sequence one per lookup.

    Args:
        tables: what the model declares.
        global_batch_size: samples of all devices; a table's lookups are its pooling factor times these.
        optimizer: fused into the backward kernel, of tables that name none.
        output_data_type: of pooled vectors and their gradients in the kernel; FBGEMM's default is FP32.
    """
    rows = np.array([table.num_embeddings for table in tables.tables], dtype=np.float64)
    pooling = np.array([table.pooling_factor for table in tables.tables])
    counts = _row_counts(tables, rows, pooling, global_batch_size)
    touched = counts.sum(axis=1)
    lookups = pooling * global_batch_size
    return ShardArrays(
        num_rows=rows,
        num_columns=np.array([table.embedding_dim for table in tables.tables], dtype=np.float64),
        bags=np.array([table.num_vectors * global_batch_size for table in tables.tables]),
        lookups=lookups,
        data_type=np.array([DATA_TYPES.index(table.data_type) for table in tables.tables], dtype=np.int64),
        family=np.full(len(rows), COLUMNS, dtype=np.int64),
        output_bytes_per_element=np.full(len(rows), float(BYTES_PER_ELEMENT[output_data_type])),
        optimizer=np.array([OPTIMIZERS.index(table.optimizer or optimizer) for table in tables.tables], dtype=np.int64),
        reuse_histogram=counts / touched[:, None],
        unique_rows=np.minimum(touched, np.minimum(rows, lookups)),
    )


def unique_rows(tables: TableSet, num_samples: int) -> FloatArray:
    """Return [n] distinct rows of each whole table that a batch of this number of samples looks up."""
    rows = np.array([table.num_embeddings for table in tables.tables], dtype=np.float64)
    pooling = np.array([table.pooling_factor for table in tables.tables])
    touched = _row_counts(tables, rows, pooling, num_samples).sum(axis=1)
    unique: FloatArray = np.minimum(touched, np.minimum(rows, pooling * num_samples))
    return unique


def sample_tables(sample: ComputeSample) -> TableSet:
    """Return the tables of a measured call as a set: they may repeat in a call, a set's names must not.

    A call has one optimizer, the sample's.
    """
    return TableSet(
        tables=tuple(
            table.model_copy(update={"name": f"t{index}", "optimizer": None})
            for index, table in enumerate(sample.tables)
        ),
        reuse_batch_size=sample.reuse_batch_size,
    )


def sample_shards(sample: ComputeSample) -> ShardArrays:
    """Return one whole-table shard per table of a measured call, in their order."""
    return shard_arrays(sample_tables(sample), global_batch_size=sample.batch_size, optimizer=sample.optimizer)


def zipf_counts(num_rows: FloatArray, *, lookups: FloatArray, exponents: FloatArray) -> FloatArray:
    """Return [n, 17]: expected rows per bin when rank r is looked up in proportion to 1 / r ** exponent.

    The rows of a cell of ranks share its mean rate, and a row's hits are Poisson.
    """
    _, rows, frequency = rank_cells(num_rows, exponents)
    rates = frequency * (lookups / (frequency * rows).sum(axis=1))[:, None]
    return mix_poisson_bins(rates, rows)


def rank_cells(num_rows: FloatArray, exponents: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return for 160 cells of ranks, each [n, 160]: ranks before the cell, ranks in it, and 1 / r ** exponent in it.

    Cells grow geometrically; the first ranks are alone in theirs, and some cells are empty.
    """
    powers = np.arange(_RANK_CELLS + 1) / _RANK_CELLS
    upper = np.round(power(num_rows[:, None], powers))
    lower = np.concatenate((np.zeros((len(num_rows), 1)), upper[:, :-1]), axis=1)
    frequency = power((lower + upper + 1) / 2, -exponents[:, None])
    return lower, upper - lower, frequency


def rescaled_counts(histograms: FloatArray, *, num_rows: FloatArray, lookups: FloatArray, ratio: float) -> FloatArray:
    """Return [n, 17]: expected rows per bin at ``ratio`` times the batch at which the histograms were measured.

    ``lookups`` are those of the measured batch; with the bins' mean hits they give the rows touched in it.
    A smaller batch thins the hits. A larger one adds to them, and draws rows that were not touched before: together
    these get as many lookups per measured batch as it had single hits (Good and Turing's estimate of unseen mass),
    shared evenly. A row with one hit goes on at Robbins' estimate of its rate, twice the number of doubles over that
    of singles. At ratio 1 nothing changes.
    """
    shares = histograms / histograms.sum(axis=1, keepdims=True)
    touched = np.minimum(lookups / weighted_sum(shares, MEAN_HITS), num_rows)
    counts = shares * touched[:, None]
    if ratio <= 1:
        return ordered_product(counts, rescaled_bins(ratio))
    warm: FloatArray = counts.copy()
    warm[:, 0] = 0.0
    singles = counts[:, 0]
    cold_rows = np.maximum(num_rows - warm.sum(axis=1), singles)
    cold_rate = singles / np.maximum(cold_rows, 1.0)
    single_rate = np.maximum(cold_rate, np.minimum(2 * counts[:, 1] / np.maximum(singles, 1e-9), 1.0))
    grown = ordered_product(warm, rescaled_bins(ratio))
    grown += singles[:, None] * poisson_bins(single_rate * (ratio - 1), offset=1)
    grown += (cold_rows - singles)[:, None] * poisson_bins(cold_rate * (ratio - 1))
    return grown


def _row_counts(tables: TableSet, rows: FloatArray, pooling: FloatArray, global_batch_size: int) -> FloatArray:
    """Return [n, 17]: expected rows per bin, from histograms where they are given and from Zipf's law elsewhere."""
    counts = np.empty((len(rows), REUSE_BINS))
    measured = np.array([table.reuse_histogram is not None for table in tables.tables])
    if measured.any():
        counts[measured] = rescaled_counts(
            np.array([table.reuse_histogram for table in tables.tables if table.reuse_histogram is not None]),
            num_rows=rows[measured],
            lookups=pooling[measured] * tables.reuse_batch_size,
            ratio=global_batch_size / tables.reuse_batch_size,
        )
    exponents = np.array([zipf_exponent(table, tables) for table in tables.tables])
    derived = np.flatnonzero(~measured)
    for start in range(0, len(derived), _CHUNK_TABLES):
        chunk = derived[start : start + _CHUNK_TABLES]
        lookups = pooling[chunk] * global_batch_size
        counts[chunk] = _known_counts(rows[chunk].tobytes(), lookups.tobytes(), exponents[chunk].tobytes())
    return counts


@lru_cache(maxsize=_KNOWN_CHUNKS)
def _known_counts(rows: bytes, lookups: bytes, exponents: bytes) -> FloatArray:
    """Return `zipf_counts` of arrays as bytes: requests of one planning differ in what changes no row's hits."""
    counts = zipf_counts(np.frombuffer(rows), lookups=np.frombuffer(lookups), exponents=np.frombuffer(exponents))
    counts.flags.writeable = False
    return counts


def zipf_exponent(table: Table, tables: TableSet) -> float:
    """Return the exponent that holds for a table: its own, else the set's, else the default."""
    for exponent in (table.zipf_exponent, tables.zipf_exponent):
        if exponent is not None:
            return exponent
    return DEFAULT_ZIPF_EXPONENT

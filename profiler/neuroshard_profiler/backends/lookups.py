"""Rows that a batch looks up, drawn so that they repeat as a sample's tables say. Times nothing.

A table with a Zipf exponent is drawn from the same cells of ranks that the cost models' features are derived from; one
with a reuse histogram gets as many rows of each bin as the histogram expects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import Table
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.reuse.shard_arrays import rank_cells, sample_shards, sample_tables, zipf_exponent
from neuroshard_costs.shards import FloatArray, IndexArray

NUM_BATCHES = 3

_SPREAD = 0x9E3779B97F4A7C15 % (2**31)
"""Popular rows are spread over the table: rank r becomes row r * _SPREAD mod rows, or a neighbour coprime to them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLookups:
    """The lookups of one batch in one table."""

    lengths: IndexArray
    """[batch] lookups of each sample; 0 is an empty bag."""
    rows: IndexArray
    """[sum of lengths]"""


Batches = tuple[tuple[TableLookups, ...], ...]
"""Of each batch the lookups in every table."""


def draw_batches(sample: ComputeSample, *, seed: int) -> Batches:
    """Draw the batches that a sample's calls look up in turn, so that no call finds all its rows in the cache."""
    random = np.random.default_rng(seed)
    return tuple(draw_lookups(sample, random) for _ in range(NUM_BATCHES))


def draw_lookups(sample: ComputeSample, random: np.random.Generator) -> tuple[TableLookups, ...]:
    """Draw one batch for every table of the sample, in their order.

    A pooling factor of 1 gives each sample exactly one lookup, any other a Poisson number of them.
    """
    lengths = [_lengths(table, sample.batch_size, random) for table in sample.tables]
    rows = _rows(sample, [int(counts.sum()) for counts in lengths], random)
    return tuple(TableLookups(lengths=counts, rows=chosen) for counts, chosen in zip(lengths, rows, strict=True))


def _lengths(table: Table, batch_size: int, random: np.random.Generator) -> IndexArray:
    if table.pooling_factor == 1:
        return np.ones(batch_size, dtype=np.int64)
    return random.poisson(table.pooling_factor, batch_size).astype(np.int64)


def _rows(sample: ComputeSample, num_lookups: Sequence[int], random: np.random.Generator) -> list[IndexArray]:
    tables = sample_tables(sample)
    shards = sample_shards(sample)
    drawn = []
    for index, (table, count) in enumerate(zip(tables.tables, num_lookups, strict=True)):
        if table.reuse_histogram is None:
            ranks = _zipf_ranks(table.num_embeddings, zipf_exponent(table, tables), count, random)
        else:
            ranks = _histogram_ranks(shards.reuse_histogram[index] * shards.unique_rows[index], count, random)
        drawn.append(ranks * _coprime(table.num_embeddings) % table.num_embeddings)
    return drawn


def _zipf_ranks(num_rows: int, exponent: float, count: int, random: np.random.Generator) -> IndexArray:
    before, size, frequency = (
        cells[0] for cells in rank_cells(np.array([float(num_rows)]), np.array([exponent], dtype=np.float64))
    )
    weights = size * frequency
    cells = np.repeat(np.arange(len(size)), random.multinomial(count, weights / weights.sum()))
    ranks = before[cells] + np.floor(random.random(count) * size[cells])
    return random.permutation(ranks.astype(np.int64))


def _histogram_ranks(rows_per_bin: FloatArray, count: int, random: np.random.Generator) -> IndexArray:
    """Give the expected rows of each bin its mean hits, and take or repeat some so that ``count`` lookups come out."""
    hits = np.repeat(MEAN_HITS, np.round(rows_per_bin).astype(np.int64))
    if len(hits) == 0:
        hits = np.ones(1)
    ranks = np.repeat(np.arange(len(hits)), np.round(hits).astype(np.int64))
    if len(ranks) < count:
        ranks = np.concatenate((ranks, random.choice(ranks, count - len(ranks))))
    return random.permutation(ranks)[:count].astype(np.int64)


def _coprime(num_rows: int) -> int:
    factor = _SPREAD % num_rows or 1
    while math.gcd(factor, num_rows) != 1:
        factor += 1
    return factor

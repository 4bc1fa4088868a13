"""Row reads that miss the last-level cache."""

from itertools import pairwise

import numpy as np
import pytest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import ShardArrays
from neuroshard_costs.simulator.cache import missed_rows
from support.builders import table, table_set

ROW_BYTES = 256.0


def shards_of(exponent: float, *, rows: int = 10**6, pooling: float = 10.0) -> ShardArrays:
    """Return one table under a batch of 65,536."""
    return shard_arrays(
        table_set(table(num_embeddings=rows, pooling_factor=pooling, zipf_exponent=exponent)),
        global_batch_size=65536,
        optimizer=Optimizer.SGD,
    )


def misses(shards: ShardArrays, capacity_rows: float) -> float:
    """Return the missed rows of the only shard with room for that many rows."""
    found = missed_rows(shards, row_bytes=np.array([ROW_BYTES]), capacity_bytes=np.array([ROW_BYTES * capacity_rows]))
    return float(found[0])


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_with_room_for_all_rows_only_first_reads_miss(exponent: float) -> None:
    """A cache of the table's size misses each touched row once."""
    shards = shards_of(exponent)

    assert misses(shards, 10**6) == pytest.approx(shards.unique_rows[0], rel=0.01)


def test_without_a_cache_every_read_misses() -> None:
    """Capacity 0 sends all reads to memory."""
    shards = shards_of(0.0)

    assert misses(shards, 0.0) == pytest.approx(shards.lookups[0], rel=0.02)


def test_a_larger_cache_misses_less() -> None:
    """Misses fall with the capacity, from the lookups down to the touched rows."""
    shards = shards_of(0.9)

    found = [misses(shards, capacity) for capacity in (0, 10, 10**3, 10**4, 10**5, 10**6)]

    assert all(more > less for more, less in pairwise(found))


def test_uniform_reads_hit_in_proportion_to_the_cached_share() -> None:
    """With equally popular rows, half of the repeated reads hit a cache of half of the rows.

    Within 10 %: their 131 mean hits are distinguished by bin only.
    """
    shards = shards_of(0.0, rows=50_000, pooling=100.0)
    repeats = shards.lookups[0] - shards.unique_rows[0]

    assert misses(shards, 25_000) == pytest.approx(shards.unique_rows[0] + repeats / 2, rel=0.1)


def test_che_agrees_with_a_simulated_least_recently_used_cache() -> None:
    """On a Zipf stream the misses are those of an LRU cache played read by read."""
    rows, capacity, pooling = 20_000, 2_000, 2.0
    shards = shards_of(0.9, rows=rows, pooling=pooling)
    frequency = np.arange(1, rows + 1) ** -0.9
    stream = np.random.default_rng(0).choice(rows, size=int(65536 * pooling), p=frequency / frequency.sum())
    cached: dict[int, None] = {}
    played = 0
    for row in stream.tolist():
        if row in cached:
            del cached[row]
        else:
            played += 1
            if len(cached) == capacity:
                del cached[next(iter(cached))]
        cached[row] = None

    assert misses(shards, capacity) == pytest.approx(played, rel=0.05)

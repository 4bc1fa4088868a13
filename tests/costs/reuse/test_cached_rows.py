"""Rows that caches of tables in host memory keep and miss, next to a cache that is played through."""

import numpy as np
import pytest
from neuroshard_costs.reuse.cached_rows import KEPT_BATCHES, CachedRows
from neuroshard_costs.shards import FloatArray, IndexArray
from support.builders import table, table_set

ROWS, BATCH, WAYS = 100_000, 2048, 32


def drawn_batches(exponent: float, count: int) -> list[IndexArray]:
    """Return batches of lookups of a table whose rows are in no order."""
    random = np.random.default_rng(0)
    weights = np.arange(1, ROWS + 1, dtype=np.float64) ** -exponent
    names = random.permutation(ROWS)
    return [names[random.choice(ROWS, size=BATCH, p=weights / weights.sum())] for _ in range(count)]


def played_misses(batches: list[IndexArray], num_slots: int) -> FloatArray:
    """Return the misses of each batch in a cache of sets of 32 slots that replaces the row unused for longest.

    As FBGEMM's: rows of the batch that are there are marked as used before others are replaced.
    """
    num_sets = -(-num_slots // WAYS)
    set_of = np.random.default_rng(1).integers(num_sets, size=ROWS)
    sets: list[dict[int, int]] = [{} for _ in range(num_sets)]
    """Batch of the last use of each row, the longest ago first."""
    missed = np.zeros(len(batches))
    for number, batch in enumerate(batches):
        touched = np.unique(batch).tolist()
        absent = [row for row in touched if row not in sets[set_of[row]]]
        missed[number] = len(absent)
        for row in set(touched).difference(absent):
            del sets[set_of[row]][row]
            sets[set_of[row]][row] = number
        for row in absent:
            held = sets[set_of[row]]
            if len(held) == WAYS:
                oldest = next(iter(held))
                if held[oldest] == number:
                    continue  # all of the set is of this batch: the row is read from the host
                del held[oldest]
            held[row] = number
    return missed


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.3])
def test_misses_are_those_of_a_cache_with_sets_of_32_rows(exponent: float) -> None:
    """Within 10 % over the batches after the cache is full, for caches of one batch to sixteen."""
    tables = table_set(table(num_embeddings=ROWS, zipf_exponent=exponent))
    caches = CachedRows.of(tables, global_batch_size=BATCH)
    batches = drawn_batches(exponent, 48)

    for choice in (0, 2, 4):
        missed = played_misses(batches, int(caches.kept[0, choice]))[24:].mean()
        assert caches.missed[0, choice] == pytest.approx(missed, rel=0.1)


def test_a_larger_cache_misses_less_and_one_of_all_rows_nothing() -> None:
    """What is kept grows with the batches, up to the whole table."""
    caches = CachedRows.of(table_set(table(pooling_factor=20)), global_batch_size=65_536)

    assert caches.kept.shape == (1, len(KEPT_BATCHES) + 1)
    assert (np.diff(caches.kept[0]) >= 0).all()
    assert (np.diff(caches.missed[0]) <= 0).all()
    first = np.zeros(1, dtype=np.int64)
    assert caches.missed_rows(first, np.ones(1)).tolist() == [0.0]
    assert caches.missed_rows(first, caches.load_factors(3))[0] == pytest.approx(caches.missed[0, 3], rel=1e-3)


def test_a_cache_of_less_than_a_batch_is_none() -> None:
    """Its rows are replaced before they are used again, so that every lookup reads its row from the host."""
    caches = CachedRows.of(table_set(table(pooling_factor=2)), global_batch_size=65_536)
    too_small = caches.load_factors(0) / 2

    assert caches.missed_rows(np.zeros(1, dtype=np.int64), too_small).tolist() == [2 * 65_536]

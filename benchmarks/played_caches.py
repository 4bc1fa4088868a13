"""Plays FBGEMM's cache of host memory with the lookups of published benchmarks, and counts the rows that are missed.

Sets of 32 rows, FBGEMM's hash, and the row of a set that was not looked up for longest goes first; rows of the batch at
hand stay. Published benchmarks repeat their batches, so that a cache sees rows again that no new batch would bring.

python -m benchmarks.played_caches prints the rows that a batch of the published benchmarks misses, as
published_measurements.json has them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published_measurements import measurements

WAYS = 32
BATCHES = 100
POWER = 1.05
PLAYED_AGAIN = 25  # batches of the second pass, whose misses hardly differ

Rows = NDArray[np.int64]


class PlayedCache:
    """A cache of at least this many rows, empty at first."""

    def __init__(self, num_rows: int) -> None:
        self._num_sets = -(-num_rows // WAYS)
        self._rows = np.full((self._num_sets, WAYS), -1, dtype=np.int64)
        self._used = np.full((self._num_sets, WAYS), -1, dtype=np.int64)
        self._batch = 0

    def look_up(self, rows: Rows) -> int:
        """Look up the distinct rows of a batch, and return how many were missed."""
        sets = self._set_of(rows)
        is_here = self._rows[sets] == rows[:, None]
        found = is_here.any(axis=1)
        self._used[sets[found], is_here[found].argmax(axis=1)] = self._batch
        missed, sets = rows[~found], sets[~found]
        num_missed = len(missed)
        while len(missed):  # one row of each set at a time
            each, first = np.unique(sets, return_index=True)
            way = self._used[each].argmin(axis=1)
            free = self._used[each, way] < self._batch
            self._rows[each[free], way[free]] = missed[first[free]]
            self._used[each[free], way[free]] = self._batch
            missed, sets = np.delete(missed, first), np.delete(sets, first)
        self._batch += 1
        return num_missed

    def _set_of(self, rows: Rows) -> Rows:
        """Return the sets of rows: MurmurHash3's mixing, modulo the sets (cache_slot of FBGEMM)."""
        mixed = rows.astype(np.uint64)
        with np.errstate(over="ignore"):
            for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
                mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
        return ((mixed ^ (mixed >> np.uint64(33))) % np.uint64(self._num_sets)).astype(np.int64)


def drawn_batches(num_rows: int, num_lookups: int) -> list[Rows]:
    """Return the distinct rows of each batch of a table (gen_jagged_key of NVIDIA's benchmark)."""
    random = np.random.default_rng(0)
    least = num_rows ** (1 - POWER)

    def batch() -> Rows:
        drawn = (random.random(num_lookups) * (least - 1) + 1) ** (1 / (1 - POWER))
        return np.unique(np.minimum(drawn.astype(np.int64), num_rows - 1))

    return [batch() for _ in range(BATCHES)]


def missed_rows(batches: Sequence[Rows], num_cached: int) -> float:
    """Return the mean of rows missed by a batch where all batches have been looked up before."""
    cache = PlayedCache(num_cached)
    for rows in batches:
        cache.look_up(rows)
    return float(np.mean([cache.look_up(rows) for rows in batches[:PLAYED_AGAIN]]))


def main() -> None:
    """Print the rows missed in each cached measurement. Equal tables share a cache evenly, so that one is played."""
    drawn: dict[tuple[int, int], list[Rows]] = {}
    shown = set()
    for what in (each.what for each in measurements() if each.what.get("memory") == "fused_uvm_caching"):
        key = (what["rows"], what["batch"])
        sized = (*key, what.get("cache_load_factor"), what.get("cached_share_of_all_batches"))
        if sized in shown:
            continue
        shown.add(sized)
        if key not in drawn:
            drawn = {key: drawn_batches(*key)}
        missed = what["tables"] * missed_rows(drawn[key], _num_cached(what, drawn[key]))
        print(*sized, round(missed), flush=True)


def _num_cached(what: Any, batches: Sequence[Rows]) -> int:  # noqa: ANN401 - a row of the file
    """Return the rows of a table that its part of the cache has."""
    share: float | None = what.get("cached_share_of_all_batches")
    rows: int = what["rows"]
    if share is not None:
        return round(share * len(np.unique(np.concatenate(batches))))
    factor: float = what["cache_load_factor"]
    return round(factor * rows)


if __name__ == "__main__":
    main()

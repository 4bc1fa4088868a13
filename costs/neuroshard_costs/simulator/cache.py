"""How many row reads miss the last-level cache: Che's approximation over the 17 reuse classes. Knows no times."""

import numpy as np

from neuroshard_costs.arithmetic import expm1, geometric, ordered_product
from neuroshard_costs.reuse.hit_counts import MEAN_HITS
from neuroshard_costs.shards import FloatArray, ShardArrays

_TIMES = np.concatenate(([0.0], geometric(1e-7, 20.0, 63)))
_OCCUPANCY = -expm1(-_TIMES[:, None] * MEAN_HITS)
"""[64, 17] chance that a row is in a cache whose content lives for a share of the batch (the characteristic time).

Che et al., Hierarchical web caching systems: modeling, design and experimental results, 2002: rows hit at rate k are
cached with chance 1 - exp(-k T); T is such that the expected content fills the cache.
"""
_OCCUPANCY[-1] = 1.0  # everything fits


def missed_rows(shards: ShardArrays, *, row_bytes: FloatArray, capacity_bytes: FloatArray) -> FloatArray:
    """Return [..., n] expected row reads that miss caches of capacity_bytes[..., n], empty when the batch begins.

    The first read of a row always misses; each later one hits with the chance that the row is still there.
    """
    rows = shards.reuse_histogram * shards.unique_rows[:, None]
    # Shards of one table follow each other, and have the same rows in all widths.
    is_other = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)]
    content = ordered_product(rows[is_other], _OCCUPANCY.T)[is_other.cumsum() - 1]
    wanted = np.minimum(capacity_bytes / row_bytes, content[:, -1])
    by_time = content.T.reshape(len(_TIMES), *(1,) * (wanted.ndim - 1), len(rows))
    above = np.clip((by_time < wanted).sum(axis=0), 1, len(_TIMES) - 1)
    each = np.arange(len(rows))
    low, high = content[each, above - 1], content[each, above]
    share = np.minimum((wanted - low) / np.maximum(high - low, 1e-300), 1.0)
    hit_chance = _OCCUPANCY[above - 1] + share[..., None] * (_OCCUPANCY[above] - _OCCUPANCY[above - 1])
    repeats = rows * (MEAN_HITS - 1)
    known = repeats.sum(axis=1)
    # A histogram may stand for more or fewer hits than the lookups; surplus lookups are on the hottest rows and hit.
    scale = np.minimum(1.0, np.maximum(shards.lookups - shards.unique_rows, 0.0) / np.maximum(known, 1e-300))
    missed_repeats: FloatArray = (repeats * (1.0 - hit_chance)).sum(axis=-1) * scale
    return shards.unique_rows + missed_repeats

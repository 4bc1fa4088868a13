"""Lookups of distinct lists: pooling factors, hits per row, and the factor of a batch."""

from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.tables import REUSE_BINS, Table
from neuroshard_costs.deduplication import batch_factor, expansion_ms, looked_up, repeating_groups
from neuroshard_costs.reuse.hit_counts import BIN_EDGES
from neuroshard_costs.reuse.repeats import fewer_hits
from neuroshard_costs.shards import FloatArray, IndexArray
from support import builders
from support.planner.exact_costs import ExactCosts


def repeating(name: str, group: str = "user", factor: float = 4.0, **fields: Any) -> Table:
    """Return a table whose lists repeat."""
    return builders.table(name, duplication_group=group, duplication_factor=factor, **fields)


def test_tables_of_a_group_look_up_distinct_lists_alone() -> None:
    """All others, and a request that leaves nothing out, stay."""
    request = builders.request(
        tables=builders.table_set(
            repeating("user", pooling_factor=20.0),
            repeating("page", "page", pooling_factor=3.0),
            builders.table("item"),
            session_run=8,
        ),
        deduplicate=("user",),
        batch_size_per_device=10**6,
    )  # fmt: skip

    priced = looked_up(request).tables.tables

    assert [table.pooling_factor for table in priced] == [pytest.approx(5.0, rel=1e-4), 3.0, 1.0]
    plain = request.model_copy(update={"deduplicate": None})
    assert looked_up(plain) is plain


def test_a_batch_has_its_first_sample_once() -> None:
    """Measured by drawing: a sample is distinct by chance, and the first one always."""
    rng = np.random.default_rng(0)
    distinct = rng.random((20_000, 16)) < 1 / 4
    distinct[:, 0] = True

    assert batch_factor(4.0, 16) == pytest.approx(16 / distinct.sum(axis=1).mean(), rel=0.01)
    assert batch_factor(1.0, 16) == 1.0


@pytest.mark.parametrize("varies", [False, True], ids=["equal", "geometric"])
@pytest.mark.parametrize("factor", [1, 2, 3, 8])
def test_hits_of_distinct_lists_are_those_that_are_drawn(factor: int, *, varies: bool) -> None:
    """Lists that repeat have a multiple of the hits; dividing by the mean gives about the histogram of the lists."""
    rng = np.random.default_rng(0)
    drawn = (100_000 * rng.random(60_000) ** 4).astype(np.int64)

    def histogram(rows: IndexArray) -> FloatArray:
        _, hits = np.unique(rows, return_counts=True)
        return np.bincount(np.searchsorted(BIN_EDGES, hits), minlength=REUSE_BINS) / len(hits)

    repeats = rng.geometric(1 / factor, size=len(drawn)) if varies else np.full(len(drawn), factor)
    found: FloatArray = np.array(fewer_hits(histogram(np.repeat(drawn, repeats)).tolist(), factor))

    assert found.sum() == pytest.approx(1.0)
    assert np.abs(np.cumsum(found) - np.cumsum(histogram(drawn))).max() < 0.15


def test_expansion_passes_through_the_memory_of_a_group() -> None:
    """Five times the pooled embeddings of a device's samples, of all features of the group's tables."""
    device = builders.device_type(memory_bandwidth_bytes_per_second=1e12)
    request = builders.request(
        tables=builders.table_set(
            repeating("user", embedding_dim=64, feature_names=("a", "b")), builders.table("item"), session_run=8
        ),
        topology=builders.topology(4).model_copy(update={"device": device}),
        deduplicate=("user",),
        batch_size_per_device=1000,
    )

    costs = ExactCosts(device=device)
    assert expansion_ms(request, costs) == pytest.approx(5 * 1000 * 128 * 4 / 1e12 * 1e3)
    assert expansion_ms(request.model_copy(update={"deduplicate": None}), costs) == 0.0
    assert [group.features for group in repeating_groups(request)] == [("a", "b")]


def test_a_group_that_there_is_not_is_refused() -> None:
    """With the groups that there are."""
    with pytest.raises(ValueError, match=r"deduplicate\[0\]: no table has the duplication_group 'shop'; .* have user"):
        builders.request(tables=builders.table_set(repeating("user"), session_run=8), deduplicate=("shop",))

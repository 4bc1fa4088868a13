"""Specification of the features."""

import dataclasses

import numpy as np
import pytest
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_costs.features import (
    COMMUNICATION_FEATURES,
    COMPUTE_FEATURES,
    FEATURE_VERSION,
    call_counts,
    communication_features,
    compute_features,
)
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import ROWS
from support.builders import table, table_set
from support.planner.bundle_builders import collectives

NAMES_OF_VERSION_2 = 18 + 1 + 5 + 4 + 17 + 17


def test_every_column_has_a_name() -> None:
    """The arrays are as wide as the lists of names, which a version pins."""
    shards = shard_arrays(table_set(), global_batch_size=4096, optimizer=Optimizer.ADAM)

    assert FEATURE_VERSION == 2
    assert len(COMPUTE_FEATURES) == NAMES_OF_VERSION_2
    assert compute_features(shards).shape == (4, len(COMPUTE_FEATURES))
    assert communication_features(collectives()).shape == (1, len(COMMUNICATION_FEATURES))
    assert len(set(COMPUTE_FEATURES)) == len(COMPUTE_FEATURES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log2_num_rows", 20.0),
        ("log2_num_columns", np.log2(36)),
        ("log2_row_bytes", np.log2(72)),
        ("log2_row_sectors", np.log2(3)),
        ("log2_row_bursts", 1.0),
        ("log2_output_sectors", np.log2(5)),
        ("log2_lookups", 14.0),
        ("log2_bags", 13.0),
        ("log2_pooling_factor", 1.0),
        ("log2_output_bytes_per_element", 2.0),
        ("log2_lookup_bytes", 14 + np.log2(72)),
        ("optimizer_adam", 1.0),
        ("optimizer_sgd", 0.0),
    ],
)
def test_a_feature_has_its_meaning(name: str, value: float) -> None:
    """Rows of 72 bytes fill 3 sectors and 2 bursts; 4 lookups for 2 features of 4,096 samples are 2^14 in 2^13 bags."""
    declared = table(
        num_embeddings=2**20,
        embedding_dim=36,
        pooling_factor=4.0,
        data_type=DataType.FP16,
        feature_names=("first", "second"),
    )
    shards = shard_arrays(table_set(declared), global_batch_size=4096, optimizer=Optimizer.ADAM)

    assert compute_features(shards)[0, COMPUTE_FEATURES.index(name)] == pytest.approx(value)


def test_counts_say_which_calls_a_device_makes() -> None:
    """One for each data type that occurs; the shards beyond 32 and beyond 64 columns decide the lanes."""
    members = (
        table("a", embedding_dim=32),
        table("b", embedding_dim=64, data_type=DataType.FP16),
        table("c", embedding_dim=128, data_type=DataType.FP16),
    )
    shards = shard_arrays(table_set(*members), global_batch_size=4096, optimizer=Optimizer.SGD)

    by_rows = dataclasses.replace(shards, family=np.full(3, ROWS))
    assert call_counts(shards).sum(axis=0).tolist() == [1, 2, *[0] * 14, 2, 1]
    assert call_counts(by_rows).sum(axis=0).tolist() == [*[0] * 4, 1, 2, *[0] * 10, 2, 1]


def test_larger_caches_miss_less() -> None:
    """The row reads that miss fall with the cache, down to one per distinct row."""
    shards = shard_arrays(
        table_set(table(pooling_factor=50.0, zipf_exponent=1.0)), global_batch_size=65536, optimizer=Optimizer.SGD
    )
    first, last = (COMPUTE_FEATURES.index(f"log2_rows_missing_{size}_mib") for size in (4, 128))
    misses = compute_features(shards)[0, first : last + 1]

    assert (np.diff(misses) < 0).all()
    assert misses[-1] >= np.log2(shards.unique_rows[0]) - 1e-6


@pytest.mark.parametrize(
    ("layout", "unused"),
    [
        ({"num_nodes": 1.0}, "inter_bandwidth"),
        ({"num_nodes": 1.0}, "inter_latency"),
        ({"devices_per_node": 1.0}, "intra_bandwidth"),
        ({"devices_per_node": 1.0}, "intra_latency"),
    ],
)
def test_an_unused_link_does_not_matter(layout: dict[str, float], unused: str) -> None:
    """One node has no link between nodes, one device per node none inside."""
    used = collectives(**layout)
    other = dataclasses.replace(used, **{unused: getattr(used, unused) * 7})

    np.testing.assert_array_equal(communication_features(used), communication_features(other))

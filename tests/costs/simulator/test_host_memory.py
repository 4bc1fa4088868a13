"""What host memory adds to shards' times, from bytes that pass over the link and from the cache's own work."""

import numpy as np
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import ShardArrays
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.host_memory import cached_seconds, direct_seconds, searched_seconds
from support.builders import host_memory, table, table_set

DEVICE = preset("h100-80gb").device
LINK = host_memory(gb_per_second=50).link
READ, UPDATE = 50e9 * c.HOST_LINK_EFFICIENCY, 50e9 * c.HOST_UPDATE_EFFICIENCY


def shards(
    optimizer: Optimizer = Optimizer.ROWWISE_ADAGRAD, *, exponent: float = 0.0, rows: int = 1_000_000
) -> ShardArrays:
    """Return a shard of 64 FP32 columns that serves 65,536 lookups."""
    members = table_set(table(zipf_exponent=exponent, num_embeddings=rows))
    return shard_arrays(members, global_batch_size=65_536, optimizer=optimizer)


def direct(found: ShardArrays, *, devices: int = 1) -> tuple[float, float]:
    """Return forward and backward seconds without a cache."""
    forward, backward = direct_seconds(LINK, found, devices_per_node=devices)[0].tolist()
    return forward, backward


def cached(found: ShardArrays, missed: float = 0.0, *, devices: int = 1) -> tuple[float, float]:
    """Return forward and backward seconds with a cache that a batch misses these rows in."""
    times = cached_seconds(DEVICE, LINK, found, missed_rows=np.array([missed]), devices_per_node=devices)
    forward, backward = times[0].tolist()
    return forward, backward


def test_without_a_cache_every_lookup_reads_its_row_and_every_touched_row_is_updated() -> None:
    """Forward 256 bytes for each lookup of rows that hardly repeat; backward 256 bytes there and back for each row."""
    found = shards(rows=10**9)
    forward, backward = direct(found)

    assert forward == pytest.approx(65_536 * 256 / READ, rel=0.01)
    assert backward == pytest.approx(found.unique_rows[0] * 256 / UPDATE)


def test_repeats_of_the_hottest_rows_do_not_pass_over_the_link() -> None:
    """Of skewed lookups a third is served by what the device keeps, but far less than all repeats."""
    found = shards(exponent=1.05)
    forward, _ = direct(found)

    assert found.unique_rows[0] * 256 / READ < forward < 0.75 * 65_536 * 256 / READ


def test_a_cache_leaves_the_missed_rows_to_the_link() -> None:
    """Each replaces another that goes back; the update of SGD and row-wise Adagrad takes nothing more."""
    found = shards(exponent=1.05)
    none, some = cached(found), cached(found, 1000.0)

    assert some[0] - none[0] == pytest.approx(1000 * 256 / UPDATE)
    assert none[1] == some[1] == 0


def test_a_cache_is_searched_for_each_lookup_and_each_distinct_row() -> None:
    """Also where it misses none: lookups and numbers of sets are sorted, and a warp compares the tags of a set."""
    found = shards(exponent=1.05)
    row_bits = np.log2(1_000_000) + c.SORT_KEY_BITS
    sorted_bytes = 65_536 * (16 * row_bits + 24 * (row_bits - 5)) / 8
    cycles = c.CACHE_SEARCH_CYCLES * (65_536 + found.unique_rows[0])
    sort_seconds = sorted_bytes / (DEVICE.memory_bandwidth_bytes_per_second * c.SORT_EFFICIENCY)

    assert cached(found)[0] == pytest.approx(
        sort_seconds + cycles / (DEVICE.num_multiprocessors * DEVICE.clock_hz), rel=1e-6
    )


def test_a_faster_device_searches_its_cache_faster() -> None:
    """An A100 has fewer multiprocessors than an H100, at a lower clock, and less memory bandwidth."""
    found = shards(exponent=1.05)
    ampere, hopper = (searched_seconds(preset(name).device, found)[0] for name in ("a100-80gb", "h100-80gb"))

    assert 1.5 * hopper < ampere < 2 * hopper


@pytest.mark.parametrize(("optimizer", "numbers"), [(Optimizer.ADAGRAD, 1), (Optimizer.ADAM, 2), (Optimizer.SGD, 0)])
def test_state_of_every_column_is_on_the_host_and_not_cached(optimizer: Optimizer, numbers: int) -> None:
    """So each touched row's state passes there and back, with and without a cache."""
    found = shards(optimizer)
    state_seconds = found.unique_rows[0] * numbers * 256 / UPDATE
    _, weights_seconds = direct(shards())

    assert cached(found)[1] == pytest.approx(state_seconds)
    assert direct(found)[1] == pytest.approx(weights_seconds + state_seconds)


def test_devices_of_a_node_share_its_memory() -> None:
    """Few devices are limited by their links; many get an even share, and half of it where they write as well."""
    found = shards()
    forward, backward = direct(found, devices=32)

    assert direct(found, devices=2) == direct(found)
    assert forward == pytest.approx(direct(found)[0] * READ / (c.HOST_NODE_RATE / 32))
    assert backward == pytest.approx(direct(found)[1] * UPDATE / (c.HOST_NODE_RATE / 64))

"""What host memory adds to shards' times, from bytes that pass over the link."""

import numpy as np
import pytest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import ShardArrays
from neuroshard_costs.simulator.constants import HOST_ROW_EFFICIENCY
from neuroshard_costs.simulator.host_memory import cached_seconds, direct_seconds
from support.builders import device_type, host_memory, table, table_set

LINK = host_memory(gb_per_second=50).link
RATE = 50e9 * HOST_ROW_EFFICIENCY


def shards(optimizer: Optimizer = Optimizer.ROWWISE_ADAGRAD) -> ShardArrays:
    """Return a shard of 64 FP32 columns that serves 65,536 lookups."""
    return shard_arrays(table_set(table()), global_batch_size=65_536, optimizer=optimizer)


def test_without_a_cache_every_lookup_reads_its_row_and_every_touched_row_is_updated() -> None:
    """Forward 256 bytes for each lookup; backward 256 bytes there and back for each distinct row."""
    found = shards()
    forward, backward = direct_seconds(LINK, found)[0]

    assert forward == pytest.approx(65_536 * 256 / RATE)
    assert backward == pytest.approx(2 * found.unique_rows[0] * 256 / RATE)


def test_a_cache_leaves_the_missed_rows_to_the_link() -> None:
    """Each replaces another that goes back; searching the cache takes device memory, and the update nothing more."""
    found = shards()
    none, some = (
        cached_seconds(device_type(), LINK, found, missed_rows=np.array([count]))[0] for count in (0.0, 1000.0)
    )

    assert some[0] - none[0] == pytest.approx(2 * 1000 * 256 / RATE)
    assert 0 < none[0] < some[0] < direct_seconds(LINK, found)[0, 0]
    assert none[1] == some[1] == 0


@pytest.mark.parametrize(("optimizer", "numbers"), [(Optimizer.ADAGRAD, 1), (Optimizer.ADAM, 2), (Optimizer.SGD, 0)])
def test_state_of_every_column_is_on_the_host_and_not_cached(optimizer: Optimizer, numbers: int) -> None:
    """So each touched row's state passes there and back, with and without a cache."""
    found = shards(optimizer)
    state_seconds = 2 * found.unique_rows[0] * numbers * 256 / RATE
    weights_seconds = direct_seconds(LINK, shards())[0, 1]

    assert cached_seconds(device_type(), LINK, found, missed_rows=np.zeros(1))[0, 1] == pytest.approx(state_seconds)
    assert direct_seconds(LINK, found)[0, 1] == pytest.approx(weights_seconds + state_seconds)

"""The bundled cost models on shards that no table was trained as: blocks of rows, and copies for a device's samples."""

import numpy as np
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.reuse.row_parts import fullest_part, hottest_row_lookups
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.simulator.device import DeviceSimulator
from support.builders import table, table_set

NUM_SETS = 60


def drawn_table(random: np.random.Generator, index: int) -> Table:
    """Return a random table."""
    pooling = float(random.choice([1.0, np.exp(random.uniform(np.log(0.1), np.log(100.0)))]))
    return table(
        f"t{index}",
        num_embeddings=int(np.exp(random.uniform(np.log(2e3), np.log(2e9)))),
        embedding_dim=4 * int(random.integers(2, 33)),
        pooling_factor=pooling,
        zipf_exponent=float(random.uniform(0.3, 1.4)),
    )


@pytest.mark.parametrize("num_parts", [1, 8, 64], ids=["local batches", "blocks of a node", "blocks of eight nodes"])
@pytest.mark.parametrize("device", ["a100-80gb", "h100-80gb", "h200-141gb"])
def test_shards_of_other_families_are_predicted_as_well_as_tables(device: str, num_parts: int) -> None:
    """The mean error of both passes against the simulator is below 2 % on fresh sets of 1 to 40 tables."""
    costs, simulator = bundled_bundle(device), DeviceSimulator(preset(device).device)
    random = np.random.default_rng(20_261_122)
    errors = []
    for _ in range(NUM_SETS):
        members = [drawn_table(random, index) for index in range(int(np.exp(random.uniform(0.0, np.log(40.0)))))]
        tables, batch_size = table_set(*members), int(2 ** random.integers(8, 15))
        whole = shard_arrays(tables, global_batch_size=batch_size * num_parts, optimizer=Optimizer.SGD)
        shards = fullest_part(
            whole,
            num_rows=np.ceil(whole.num_rows / num_parts),
            num_parts=np.full(len(whole), float(num_parts)),
            hottest_row=hottest_row_lookups(tables, whole),
        )
        true_ms = simulator.compute_ms(shards, np.zeros(len(whole), dtype=np.int64), 1, pipeline=Pipeline.SPARSE_DIST)
        found_ms = costs.compute_ms(costs.represent(shards).sum(axis=0)[None], pipeline=Pipeline.SPARSE_DIST)
        errors.append(np.abs(found_ms / true_ms - 1))

    assert np.mean(errors) < 0.02

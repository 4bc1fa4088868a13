"""The ledger: every byte by purpose, by hand."""

import numpy as np
import pytest
from builders import GIB, request, table, tables, topology
from neuroshard_api.request import Constraints, MemorySettings
from neuroshard_api.tables import DataType, Optimizer
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.memory_ledger import MemoryLedger

FIRST = np.array([0])


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Optimizer.SGD, 0),
        (Optimizer.ROWWISE_ADAGRAD, 4 * 1000),
        (Optimizer.ADAGRAD, 4 * 1000 * 16),
        (Optimizer.ADAM, 8 * 1000 * 16),
    ],
)
def test_optimizer_state_is_kept_in_four_bytes(optimizer: Optimizer, expected: int) -> None:
    """SGD has none, row-wise Adagrad one number per row of each shard, Adagrad one per element, Adam two."""
    ledger = MemoryLedger(request(optimizer=optimizer))

    assert ledger.optimizer_state_bytes(np.array([1000]), np.array([16])).tolist() == [expected]


@pytest.mark.parametrize(("data_type", "num_bytes"), [(DataType.FP32, 4), (DataType.FP16, 2)])
def test_weights_take_the_bytes_of_their_type(data_type: DataType, num_bytes: int) -> None:
    """Rows times columns times the size of an element."""
    ledger = MemoryLedger(request(table(data_type=data_type)))

    assert ledger.weights_bytes(FIRST, np.array([1000]), np.array([16])).tolist() == [16_000 * num_bytes]


def test_pooled_values_and_gradients_exist_for_the_global_batch() -> None:
    """A shard's columns twice in the output type, for the samples of all devices."""
    ledger = MemoryLedger(
        request(batch_size_per_device=100, memory=MemorySettings(output_data_type=DataType.FP16), num_devices=4)
    )

    assert ledger.activation_bytes(np.array([0]), np.array([16])).tolist() == [16 * 2 * 2 * 400]


def test_inputs_are_indices_and_offsets_of_every_pipelined_batch() -> None:
    """Eight bytes per lookup, and per sample and feature."""
    asked = request(
        table(pooling_factor=2.5, feature_names=("a", "b")),
        table("unnamed"),
        batch_size_per_device=100,
        memory=MemorySettings(num_pipelined_batches=3),
    )

    found = MemoryLedger(asked).input_bytes(np.array([0, 1]))

    assert found.tolist() == [3 * 8 * 400 * 4.5, 3 * 8 * 400 * 2]


def test_what_is_left_for_shards_is_capacity_less_what_every_device_needs() -> None:
    """Reserve, dense part, and the embeddings that a device receives for its own batch."""
    asked = request(
        *tables(4),
        memory=MemorySettings(dense_bytes=GIB, reserve_fraction=0.25),
        topology=topology(2, memory_bytes=64 * GIB),
        batch_size_per_device=1024,
    )

    ledger = MemoryLedger(asked)

    assert ledger.fixed_bytes == 16 * GIB + GIB + 2 * 4 * 1024 * 256
    assert ledger.shard_capacity_bytes == 64 * GIB - ledger.fixed_bytes


def test_one_device_receives_nothing() -> None:
    """Without an all-to-all there is no second copy of the pooled values."""
    ledger = MemoryLedger(request(num_devices=1, memory=MemorySettings(reserve_fraction=0.0)))

    assert ledger.fixed_bytes == 0


@pytest.mark.parametrize(("limit", "expected"), [(None, 80 * GIB), (10 * GIB, 10 * GIB), (100 * GIB, 80 * GIB)])
def test_the_capacity_is_the_lesser_of_device_and_constraint(limit: int | None, expected: int) -> None:
    """A constraint above the device's memory gives none."""
    ledger = MemoryLedger(request(constraints=Constraints(max_memory_bytes_per_device=limit)))

    assert ledger.capacity_bytes == expected


def test_the_devices_ledger_adds_up_to_the_shards_and_the_fixed_part() -> None:
    """What the search counts per shard is what the plan shows per device."""
    ledger = MemoryLedger(request(table("a", embedding_dim=8), table("b"), num_devices=2))
    shards = (np.array([0, 1, 1]), np.array([1_000_000] * 3), np.array([8, 32, 32]))

    devices = ledger.devices(*shards, np.array([0, 0, 1]))

    used = [sum(value for name, value in each.model_dump().items() if name != "capacity_bytes") for each in devices]
    each = ledger.shard_bytes(*shards)
    assert used == [ledger.fixed_bytes + each[0] + each[1], ledger.fixed_bytes + each[2]]


def test_ten_trillion_rows_are_counted_exactly() -> None:
    """Numbers beyond 2^53 do not pass through floats."""
    ledger = MemoryLedger(request(table(num_embeddings=10**13, embedding_dim=8192), optimizer=Optimizer.ADAM))

    weights = ledger.weights_bytes(FIRST, np.array([10**13]), np.array([8188]))

    assert weights.tolist() == [4 * 8188 * 10**13]


def test_more_bytes_than_can_be_counted_are_infeasible() -> None:
    """The largest table is named with its field, before any sum overflows."""
    members = (
        *tables(3),
        table("huge", num_embeddings=10**13, embedding_dim=8192),
        *tables(30, num_embeddings=10**13, embedding_dim=4096)[3:],
    )

    with pytest.raises(InfeasibleError, match=r"'huge' .*tables\.tables\[3\]\.num_embeddings"):
        MemoryLedger(request(*members, optimizer=Optimizer.ADAM))

"""The ledger: every byte by purpose, by hand."""

import numpy as np
import pytest
from builders import GIB, dense_profile, device_type, request, table, tables, topology
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
        request(batch_size_per_device=100, memory=MemorySettings(output_data_type=DataType.BF16), num_devices=4)
    )

    assert ledger.activation_bytes(FIRST, np.array([16])).tolist() == [16 * 2 * 2 * 400]


def test_every_feature_of_a_table_has_pooled_values_of_its_own() -> None:
    """Three features of one table are pooled and received three times."""
    one, three = (
        MemoryLedger(request(table(feature_names=names), memory=MemorySettings(reserve_fraction=0.0)))
        for names in ((), ("a", "b", "c"))
    )
    width = np.array([64])

    assert three.activation_bytes(FIRST, width) == 3 * one.activation_bytes(FIRST, width)
    received = [each.fixed_bytes - each.local_input_bytes for each in (one, three)]
    assert received[1] == 3 * received[0] > 0


@pytest.mark.parametrize(
    ("num_batches", "num_distributed"),
    [(3, 3), (1, 2)],
    ids=["one in work, one ahead, one in the exchange", "no pipeline: one in work, one in the exchange"],
)
def test_inputs_are_lookups_and_lengths_of_every_distributed_batch(num_batches: int, num_distributed: int) -> None:
    """Eight bytes per lookup, four per sample and feature, and twelve for the offsets of the batch in work."""
    asked = request(
        table(pooling_factor=2.5, feature_names=("a", "b")),
        table("unnamed"),
        batch_size_per_device=100,
        memory=MemorySettings(num_pipelined_batches=num_batches),
    )

    found = MemoryLedger(asked).input_bytes(np.array([0, 1]))

    bags = np.array([2 * 400, 400])
    assert found.tolist() == (num_distributed * (8 * np.array([1000, 400]) + 4 * bags) + 12 * bags).tolist()


def test_a_device_holds_its_own_samples_before_they_are_exchanged() -> None:
    """All tables' lookups of its batch, for each batch in flight and once more as they are sent; dense features too."""
    members = (table(pooling_factor=2.5, feature_names=("a", "b")), table("unnamed"))
    asked = request(*members, batch_size_per_device=100)
    counted = asked.with_dense(dense_profile(*members, batch_size_per_device=100, input_bytes=5200), where="dense.json")

    local = 8 * (250 + 100) + 4 * (200 + 100)
    assert MemoryLedger(asked).local_input_bytes == 4 * local
    assert MemoryLedger(counted).local_input_bytes == 4 * local + 3 * 5200


def test_the_backward_kernels_sort_forty_bytes_per_lookup() -> None:
    """Linear indices and infos twice, and the runs; on a CPU torch allocates none of it."""
    ledger = MemoryLedger(request(table(pooling_factor=2.5), batch_size_per_device=100, num_devices=4))

    on_cpu = topology(4, device=device_type(name="cpu-any"))

    assert ledger.sort_bytes(FIRST).tolist() == [(2 * 8 + 2 * 4 + 8 + 4 + 4) * 1000]
    assert MemoryLedger(request(topology=on_cpu)).sort_bytes(FIRST).tolist() == [0]


def test_what_is_left_for_shards_is_capacity_less_what_every_device_needs() -> None:
    """Reserve, dense part, and the embeddings and samples that a device holds for its own batch."""
    asked = request(
        *tables(4),
        memory=MemorySettings(dense_bytes=GIB, reserve_fraction=0.25, reserve_bytes=GIB),
        topology=topology(2, memory_bytes=64 * GIB),
        batch_size_per_device=1024,
    )

    ledger = MemoryLedger(asked)

    assert ledger.fixed_bytes == 16 * GIB + 2 * GIB + 2 * 4 * 1024 * 256 + 4 * (8 + 4) * 4 * 1024
    assert ledger.shard_capacity_bytes == 64 * GIB - ledger.fixed_bytes


def test_one_device_receives_nothing() -> None:
    """Without an all-to-all there is no second copy of the pooled values, nor of the inputs."""
    asked = request(num_devices=1, memory=MemorySettings(reserve_fraction=0.0))
    ledger = MemoryLedger(asked)

    assert ledger.fixed_bytes == ledger.local_input_bytes == 3 * len(asked.tables.tables) * (8 + 4) * 8192


def test_one_device_converts_nothing_for_the_wire() -> None:
    """Where nothing is sent, a type on the wire asks for no copy."""
    plain, narrow = (
        MemoryLedger(request(num_devices=1, memory=MemorySettings(wire_data_type=wire)))
        for wire in (None, DataType.BF16)
    )

    assert narrow.activation_bytes(FIRST, np.array([64])) == plain.activation_bytes(FIRST, np.array([64]))


def test_the_dense_part_works_in_what_the_lookups_freed() -> None:
    """Its ledger is its total less pooled values, gradients and sort buffers, whose moment is over by then."""
    asked = request(table(), num_devices=2).with_dense(dense_profile(table()), where="dense.json")
    ledger, total = MemoryLedger(asked), dense_profile().total_bytes
    received = 4 * 8192 * 64  # the embeddings themselves stay until their gradients are made

    [holder, other] = ledger.devices(FIRST, np.array([1_000_000]), np.array([64]), FIRST)

    assert other.dense_bytes == total - received
    freed = ledger.activation_bytes(FIRST, np.array([64])) + ledger.sort_bytes(FIRST)
    assert [total - received - holder.dense_bytes] == freed.tolist()


def test_a_small_dense_part_works_in_freed_memory_alone() -> None:
    """What it keeps from step to step is counted in full."""
    small = dense_profile(table(), working_bytes=1000)
    asked = request(table(), num_devices=2).with_dense(small, where="dense.json")

    [holder, _] = MemoryLedger(asked).devices(FIRST, np.array([1_000_000]), np.array([64]), FIRST)

    assert holder.dense_bytes == small.total_bytes - 1000


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

    used = [each.used_bytes for each in devices]
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

"""The ledger: every byte by purpose, by hand."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.request import Constraints, MemorySettings, Pipeline, PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer, Pooling
from neuroshard_costs.memory_ledger import MemoryLedger
from neuroshard_costs.shards import COLUMNS, REPLICATED, ROWS
from support.builders import GIB, dense_profile, device_type, host_memory, request, table, tables, topology
from support.planner.searches import problem_of, random_placement, search_requests

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

    assert ledger.optimizer_state_bytes(FIRST, np.array([1000]), np.array([16])).tolist() == [expected]


def test_each_table_has_the_state_of_its_own_optimizer() -> None:
    """On its device; in host memory too, but for row-wise state, which stays on the device."""
    members = (table("a"), table("b", optimizer=Optimizer.ROWWISE_ADAGRAD), table("c", optimizer=Optimizer.ADAM))
    ledger = MemoryLedger(request(*members, optimizer=Optimizer.SGD, num_devices=1))
    which, rows, columns = np.arange(3), np.full(3, 100), np.full(3, 8)
    state = ledger.optimizer_state_bytes(which, rows, columns)

    assert state.tolist() == [0, 400, 6400]
    assert ledger.host_bytes(which, rows, columns).tolist() == [3200, 3200, 3200 + 6400]
    [on_device] = ledger.devices(which, rows, columns, np.zeros(3, dtype=np.int64))
    [on_host] = ledger.devices(which, rows, columns, np.zeros(3, dtype=np.int64), kernels=1)
    assert (on_device.optimizer_state_bytes, on_host.optimizer_state_bytes) == (6800, 400)


@pytest.mark.parametrize(("data_type", "num_bytes"), [(DataType.FP32, 4), (DataType.FP16, 2)])
def test_weights_take_the_bytes_of_their_type(data_type: DataType, num_bytes: int) -> None:
    """Rows times columns times the size of an element."""
    ledger = MemoryLedger(request(table(data_type=data_type)))

    assert ledger.weights_bytes(FIRST, np.array([1000]), np.array([16])).tolist() == [16_000 * num_bytes]


def test_returned_vectors_exist_twice_for_the_global_batch() -> None:
    """A shard's columns in the output type, for the samples of all devices, and the copy that is sent."""
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


def test_a_sequence_has_a_vector_of_every_lookup() -> None:
    """Rows are returned as they are looked up: before the exchange for the global batch, after it for the own one."""
    settings = MemorySettings(reserve_fraction=0.0)
    members = (table(pooling_factor=2.5, pooling=pooling) for pooling in (Pooling.SUM, Pooling.NONE))
    bags, sequence = (MemoryLedger(request(each, batch_size_per_device=100, memory=settings)) for each in members)
    width = np.array([64])

    assert bags.activation_bytes(FIRST, width).tolist() == [64 * 2 * 4 * 400]
    assert sequence.activation_bytes(FIRST, width).tolist() == [64 * 2 * 4 * 1000]
    received = [each.fixed_bytes - each.local_input_bytes for each in (bags, sequence)]
    assert received[1] == 2.5 * received[0] > 0
    assert sequence.input_bytes(FIRST).tolist() == bags.input_bytes(FIRST).tolist()
    # By rows on four devices: partial sums of all bags, but only the vectors of a block's own lookups.
    assert bags.activation_bytes(FIRST, width, ROWS).tolist() == [64 * 2 * 4 * 400]
    assert sequence.activation_bytes(FIRST, width, ROWS).tolist() == [64 * 2 * 4 * 250]


def test_a_weighted_lookup_has_twelve_bytes() -> None:
    """Index and weight travel together; lengths and offsets do not change."""
    plain, weighted = (
        MemoryLedger(request(table(pooling_factor=2.0, is_weighted=given), batch_size_per_device=100))
        for given in (None, True)
    )
    lookups_in_flight = 3 * 2 * 400

    assert (weighted.input_bytes(FIRST) - plain.input_bytes(FIRST)).tolist() == [4 * lookups_in_flight]


@pytest.mark.parametrize(
    ("num_batches", "num_distributed"),
    [(3, 3), (1, 3), (4, 4)],
    ids=[
        "one in work, one ahead, one in the exchange",
        "no pipeline: the last, and two in the exchange",
        "four",
    ],
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
    """All tables' lookups of its batch, for each batch in flight, and of two as they are sent; dense features too."""
    members = (table(pooling_factor=2.5, feature_names=("a", "b")), table("unnamed"))
    asked = request(*members, batch_size_per_device=100)
    counted = asked.with_dense(dense_profile(*members, batch_size_per_device=100, input_bytes=5200), where="dense.json")

    local = 8 * (250 + 100) + 4 * (200 + 100)
    assert MemoryLedger(asked).local_input_bytes == 5 * local
    assert MemoryLedger(counted).local_input_bytes == 5 * local + 3 * 5200


def test_the_backward_kernels_sort_forty_bytes_per_lookup() -> None:
    """Linear indices and infos twice, and the runs; on a CPU torch allocates none of it."""
    ledger = MemoryLedger(request(table(pooling_factor=2.5), batch_size_per_device=100, num_devices=4))

    on_cpu = topology(4, device=device_type(name="cpu-any"))

    assert ledger.sort_bytes(FIRST).tolist() == [(2 * 8 + 2 * 4 + 8 + 4 + 4) * 1000]
    assert MemoryLedger(request(topology=on_cpu)).sort_bytes(FIRST).tolist() == [0]


def test_the_kernel_of_copies_runs_while_vectors_travel() -> None:
    """Its dense gradient is there next to the three copies of vectors, and in the bucket."""
    on_cpu = topology(2, device=device_type(name="cpu-any"))
    members = (table("copied", num_embeddings=1000), table("whole", pooling_factor=1.0))
    ledger = MemoryLedger(request(*members, topology=on_cpu, batch_size_per_device=100))
    families = np.array([REPLICATED, COLUMNS, REPLICATED])

    entry, _ = ledger.devices(np.array([0, 1, 0]), np.full(3, 1000), np.full(3, 64), np.array([0, 0, 1]), families)

    returned, received = 4 * 64 * (200 + 100), 4 * 64 * (100 + 100)
    assert entry.gradient_bytes == 2 * 4 * 64 * 1000
    assert entry.activation_bytes == returned + received + max(returned, received)


def test_what_is_left_for_shards_is_capacity_less_what_every_device_needs() -> None:
    """Reserve, dense part, and the embeddings and samples that a device holds for its own batch."""
    asked = request(
        *tables(4),
        memory=MemorySettings(dense_bytes=GIB, reserve_fraction=0.25, reserve_bytes=GIB),
        topology=topology(2, memory_bytes=64 * GIB),
        batch_size_per_device=1024,
    )

    ledger = MemoryLedger(asked)

    assert ledger.fixed_bytes == 16 * GIB + 2 * GIB + 2 * 4 * 1024 * 256 + 5 * (8 + 4) * 4 * 1024
    assert ledger.shard_capacity_bytes == 64 * GIB - ledger.fixed_bytes


def test_every_device_has_the_memory_for_managed_collision() -> None:
    """It is in the ledger by its own name, and no memory for shards."""
    plain, mapped = (
        MemoryLedger(request(*tables(4), memory=MemorySettings(managed_collision_bytes=size))) for size in (None, GIB)
    )
    one_each = (np.arange(4), np.full(4, 1000), np.full(4, 64), np.arange(4))

    assert plain.shard_capacity_bytes - mapped.shard_capacity_bytes == GIB
    for left_out, counted in zip(plain.devices(*one_each), mapped.devices(*one_each), strict=True):
        assert left_out.managed_collision_bytes is None
        assert counted.managed_collision_bytes == GIB
        assert counted.used_bytes - left_out.used_bytes == GIB


def test_one_device_receives_nothing() -> None:
    """Without an all-to-all there is no second copy of the pooled values, nor of the inputs."""
    asked = request(num_devices=1, memory=MemorySettings(reserve_fraction=0.0))
    ledger = MemoryLedger(asked)

    assert ledger.fixed_bytes == ledger.local_input_bytes == 3 * len(asked.tables.tables) * (8 + 4) * 8192


def test_one_device_converts_nothing_for_the_wire() -> None:
    """Where nothing is sent, a type on the wire asks for no copy."""
    plain, narrow = (
        MemoryLedger(request(num_devices=1, wire=wire))
        for wire in (None, WireTypes(forward=WireType.BF16, backward=WireType.BF16))
    )

    assert narrow.activation_bytes(FIRST, np.array([64])) == plain.activation_bytes(FIRST, np.array([64]))


def test_choosing_the_largest_values_needs_the_magnitudes_of_all() -> None:
    """Next to the copy that is sent: a codec of all values makes none."""
    plain, rounded, largest = (
        MemoryLedger(request(num_devices=2, wire=wire)).activation_bytes(FIRST, np.array([64]))
        for wire in (None, *(WireTypes(forward=kind) for kind in (WireType.INT8, WireType.TOP32)))
    )

    assert plain < rounded < largest


def test_a_device_is_counted_at_the_moment_when_it_needs_most() -> None:
    """The top of the dense work, vectors that travel, or the kernels that sort: what is alive at one is not at another.

    Vectors of the shard for the global batch, received ones, and a copy of the larger; then gradients of the shard's.
    """
    vectors = 4 * 2 * 8192 * 64
    for working_bytes, pooling_factor, expected in (
        (GIB, 1.0, (GIB, 0, 0)),
        (1000, 1.0, (0, 2 * vectors + vectors // 2, 0)),
        (1000, 30.0, (0, vectors, 40 * 2 * 30 * 8192)),
    ):
        members = table(embedding_dim=64, pooling_factor=pooling_factor)
        profile = dense_profile(members, working_bytes=working_bytes)
        asked = request(members, num_devices=2).with_dense(profile, where="dense.json")

        [holder, _] = MemoryLedger(asked).devices(FIRST, np.array([1_000_000]), np.array([64]), FIRST)

        working = holder.dense_bytes - (profile.total_bytes - working_bytes)
        assert (working, holder.activation_bytes, holder.sort_bytes) == expected


def test_without_a_pipeline_the_copies_of_an_exchange_are_gone_at_the_lookups() -> None:
    """One batch and its offsets remain of three, and one of two copies of the device's own samples."""
    asked = request(table(embedding_dim=64), num_devices=2, pipeline=Pipeline.NONE)
    samples = 2 * 8192

    [holder, _] = MemoryLedger(asked).devices(FIRST, np.array([1_000_000]), np.array([64]), FIRST)

    assert holder.activation_bytes > 0
    assert holder.input_bytes == (8 + 4 + 12) * samples
    assert holder.local_input_bytes == (8 + 4) * samples // 2


def test_the_exchange_of_indices_can_be_the_highest_moment() -> None:
    """On a CPU, which sorts outside the ledger, many lookups outweigh narrow pooled values."""
    on_cpu = topology(2, device=device_type(name="cpu-any"))
    asked = request(table(embedding_dim=4, pooling_factor=100.0), topology=on_cpu, pipeline=Pipeline.NONE)
    samples = 2 * 8192

    [holder, _] = MemoryLedger(asked).devices(FIRST, np.array([1_000_000]), np.array([4]), FIRST)

    assert holder.activation_bytes == 0
    assert holder.input_bytes == (3 * (800 + 4) + 12) * samples
    assert holder.local_input_bytes == 2 * (800 + 4) * samples // 2


@settings(max_examples=30)
@given(asked=search_requests(), working_bytes=st.integers(0, 2**34), seed=st.integers(0, 9999))
def test_no_device_needs_more_than_the_search_counts(asked: PlanRequest, working_bytes: int, seed: int) -> None:
    """The search adds up shards and a fixed part, and what fits there fits at every moment of a step."""
    profile = dense_profile(
        *asked.tables.tables, batch_size_per_device=asked.batch_size_per_device, working_bytes=working_bytes
    )
    problem = problem_of(asked.with_dense(profile, where="dense.json"))
    placement = random_placement(problem, random.Random(seed))  # noqa: S311 - no secret
    shards, position = problem.shards_of(placement.kinds)
    members = np.array([table for unit in problem.kinds.unit[placement.kinds] for table in problem.units[unit].tables])

    counted = np.full(problem.num_devices, problem.memory.fixed_bytes, dtype=np.int64)
    np.add.at(counted, placement.devices, problem.kinds.memory_bytes[placement.kinds])
    sizes = (shards.num_rows.astype(np.int64), shards.num_columns.astype(np.int64))
    found = problem.memory.devices(members, *sizes, placement.devices[position])

    assert all(each.used_bytes <= limit for each, limit in zip(found, counted.tolist(), strict=True))


@pytest.mark.parametrize(("limit", "expected"), [(None, 80 * GIB), (10 * GIB, 10 * GIB), (100 * GIB, 80 * GIB)])
def test_the_capacity_is_the_lesser_of_device_and_constraint(limit: int | None, expected: int) -> None:
    """A constraint above the device's memory gives none."""
    ledger = MemoryLedger(request(constraints=Constraints(max_memory_bytes_per_device=limit)))

    assert ledger.capacity_bytes == expected


def test_the_search_counts_sorting_or_travelling_vectors_whichever_needs_more() -> None:
    """Of a whole table exactly, but for a byte per column; of a part of its columns no less."""
    for pooling_factor, columns in ((1.0, 64), (30.0, 64), (3.0, 8)):
        member = table(embedding_dim=columns, pooling_factor=pooling_factor)
        ledger = MemoryLedger(request(member, num_devices=2, memory=MemorySettings(reserve_fraction=0.0)))

        def beside(width: int, ledger: MemoryLedger = ledger) -> int:
            size = (FIRST, np.array([1000]), np.array([width]))
            found = ledger.shard_bytes(*size) - ledger.weights_bytes(*size) - ledger.optimizer_state_bytes(*size)
            return int((found - ledger.input_bytes(FIRST))[0])

        def needed(width: int, ledger: MemoryLedger = ledger) -> int:
            size = (FIRST, np.array([width]))
            kernels = ledger.vector_bytes(*size) + ledger.sort_bytes(FIRST)
            return int(np.maximum(ledger.activation_bytes(*size), kernels)[0])

        assert 0 <= beside(columns) - needed(columns) <= columns
        assert all(beside(width) >= needed(width) for width in range(4, columns, 4))


def test_ten_trillion_rows_are_counted_exactly() -> None:
    """Numbers beyond 2^53 do not pass through floats."""
    ledger = MemoryLedger(request(table(num_embeddings=10**13, embedding_dim=8192), optimizer=Optimizer.ADAM))

    weights = ledger.weights_bytes(FIRST, np.array([10**13]), np.array([8188]))

    assert weights.tolist() == [4 * 8188 * 10**13]


@pytest.mark.parametrize(
    ("optimizer", "state", "on_host"),
    [(Optimizer.ROWWISE_ADAGRAD, 4000, 0), (Optimizer.ADAGRAD, 0, 64_000), (Optimizer.SGD, 0, 0)],
)
def test_a_cached_table_leaves_its_cache_and_its_state_of_each_row_on_the_device(
    optimizer: Optimizer, state: int, on_host: int
) -> None:
    """100 of 1000 rows are four whole sets of 32 slots: 16 FP32 columns and 16 bytes each, and 4 bytes for each row."""
    ledger = MemoryLedger(
        request(
            table(num_embeddings=1000, embedding_dim=16),
            topology=topology(1, host_memory=host_memory()),
            optimizer=optimizer,
        )
    )
    (device,) = ledger.devices(
        FIRST, np.array([1000]), np.array([16]), FIRST, kernels=np.array([2]), load_factors=np.array([0.1])
    )

    assert (device.weights_bytes, device.optimizer_state_bytes) == (0, state)
    assert device.cache_bytes == 128 * (16 * 4 + 16) + 4 * 1000
    assert device.host_bytes == 64_000 + on_host


def test_slots_of_a_call_are_as_wide_as_its_widest_cached_shard() -> None:
    """Of the cached ones on the same device alone."""
    ledger = MemoryLedger(
        request(
            *(
                table(name, num_embeddings=1000, embedding_dim=width)
                for name, width in (("a", 16), ("b", 32), ("c", 64))
            ),
            topology=topology(2, host_memory=host_memory()),
        )
    )
    rows, widths, kernels = np.full(3, 1000), np.array([16, 32, 64]), np.array([2, 2, 0])
    factors = np.array([0.032, 0.032, 0.0])
    together = ledger.devices(np.arange(3), rows, widths, np.zeros(3, int), kernels=kernels, load_factors=factors)
    apart = ledger.devices(np.arange(3), rows, widths, np.array([0, 1, 0]), kernels=kernels, load_factors=factors)

    assert together[0].cache_bytes == 2 * (32 * (32 * 4 + 16) + 4000)
    assert [each.cache_bytes for each in apart] == [32 * (16 * 4 + 16) + 4000, 32 * (32 * 4 + 16) + 4000]

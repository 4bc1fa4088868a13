"""Fused embedding kernels of the device simulator: one test for each phenomenon."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.tables import DataType, Optimizer, Table
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.compute import (
    DEVICE_SECONDS,
    HOST_SECONDS,
    INDEX_CHECK,
    NUM_DEMANDS,
    combined_seconds,
    demand_seconds,
    kernel_seconds,
    set_seconds,
    shared_cache_bytes,
)
from support.builders import device_type, table, table_set

FORWARD, BACKWARD = 0, 1


def seconds(
    *members: Table,
    batch: int = 65536,
    optimizer: Optimizer = Optimizer.SGD,
    pipeline: Pipeline = Pipeline.SPARSE_DIST,
    **device: Any,
) -> FloatArray:
    """Return forward and backward seconds of the tables on one device."""
    shards = shard_arrays(table_set(*members), global_batch_size=batch, optimizer=optimizer)
    one_set = np.zeros(len(members), dtype=np.int64)
    times: FloatArray = set_seconds(device_type(**device), shards, one_set, 1, pipeline=pipeline)[0]
    return times


def kernels(
    *members: Table,
    optimizer: Optimizer = Optimizer.SGD,
    output_data_type: DataType = DataType.FP32,
    **device: Any,
) -> FloatArray:
    """Return forward and backward seconds that the kernels of one call on the tables compute."""
    shards = shard_arrays(
        table_set(*members), global_batch_size=65536, optimizer=optimizer, output_data_type=output_data_type
    )
    times: FloatArray = kernel_seconds(device_type(**device), shards, np.zeros(len(members), dtype=np.int64), 1)[0]
    return times


def busy(**fields: Any) -> Table:
    """Return a table whose kernels take far longer than their launch."""
    return table(**{"num_embeddings": 10**7, "pooling_factor": 50.0, **fields})


@pytest.mark.parametrize("dim", [256, 128, 64, 32])
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD], ids=["forward", "backward"])
def test_halving_a_dim_costs_clearly_more_than_half(dim: int, direction: int) -> None:
    """Rows of memory are opened and indices read for half a row as for a whole one; the launch is not counted."""
    whole, half = (kernels(busy(embedding_dim=width, zipf_exponent=0.0))[direction] for width in (dim, dim // 2))

    assert 0.51 < half / whole < 1


@pytest.mark.parametrize("dim", [256, 128, 64, 32])
def test_halving_a_hot_dim_costs_more_than_half(dim: int) -> None:
    """Reads that hit the cache cost in proportion to their bytes, so only launch, inputs and issue keep the rest."""
    whole, half = (seconds(busy(embedding_dim=width, zipf_exponent=1.2))[FORWARD] for width in (dim, dim // 2))

    assert 0.5 < half / whole < 1


def test_a_fused_call_costs_less_than_its_tables_one_by_one() -> None:
    """One table's cache work overlaps another's memory work."""
    members = (busy(name="cold", zipf_exponent=0.0), busy(name="hot", zipf_exponent=1.5))

    assert (seconds(*members) < 0.98 * sum(seconds(member) for member in members)).all()


def test_a_fused_call_launches_small_tables_at_once() -> None:
    """Eight tables that one launch outlasts cost little more together than one does."""
    small = [table(f"t{index}", num_embeddings=1000, embedding_dim=16) for index in range(8)]

    assert (seconds(*small, batch=1024) < 1.5 * seconds(small[0], batch=1024)).all()


def test_hot_rows_cost_less_than_uniform_ones() -> None:
    """Reads of few hot rows hit the cache, and fewer rows are updated."""
    hot, uniform = seconds(busy(zipf_exponent=1.2)), seconds(busy(zipf_exponent=0.0))

    assert (hot < 0.8 * uniform).all()


def test_small_dims_waste_bandwidth() -> None:
    """Per byte of weights read, rows of 4 columns cost several times what rows of 64 do."""
    narrow = kernels(busy(embedding_dim=4))[FORWARD] / 4
    wide = kernels(busy(embedding_dim=64))[FORWARD] / 64

    assert narrow > 3.5 * wide


def test_backward_grows_with_the_indices_to_sort() -> None:
    """Twice the lookups of the same 64 hot rows update nothing more, but are sorted and summed."""
    once, twice = (kernels(busy(num_embeddings=64, pooling_factor=p))[BACKWARD] for p in (50.0, 100.0))

    assert 1.8 < twice / once < 2.1


def test_backward_grows_with_the_key_bits_to_sort() -> None:
    """More rows mean longer keys and more passes of the radix sort: the demand on the sort alone grows."""
    shards = shard_arrays(
        table_set(*(table(f"t{bits}", num_embeddings=2**bits) for bits in (8, 16, 24, 32))),
        global_batch_size=65536,
        optimizer=Optimizer.SGD,
    )

    sort = demand_seconds(device_type(), shards)[:, -1]

    assert all(less < more for less, more in pairwise(sort))


def test_the_check_of_the_indices_precedes_the_forward_kernel_whatever_the_width() -> None:
    """A call of one-hot narrow tables takes longer for its check than for its rows, as a measured H200 does."""
    shards = shard_arrays(
        table_set(*(table(f"t{dim}", num_embeddings=1000, embedding_dim=dim) for dim in (4, 8))),
        global_batch_size=65536,
        optimizer=Optimizer.SGD,
    )

    check = demand_seconds(device_type(), shards)[:, INDEX_CHECK]
    forward = kernel_seconds(device_type(), shards, np.zeros(2, dtype=np.int64), 1)[0, FORWARD]

    assert check[0] == check[1]
    assert check.sum() > forward / 2


def test_rows_that_a_multiprocessor_has_read_are_no_load_for_the_cache() -> None:
    """Of equally many lookups, those of a few hot rows are served by the multiprocessors' own caches."""
    hot, cold = (
        kernels(busy(num_embeddings=rows, embedding_dim=128, zipf_exponent=0.0))[FORWARD] for rows in (50, 50_000)
    )

    assert hot < 0.7 * cold


def test_adam_corrects_each_row_with_a_whole_warp() -> None:
    """Narrow tables save Adagrad lanes, and Adam none: per row it costs about as much at 8 columns as at 128."""
    narrow, wide = (
        demand_seconds(
            device_type(),
            shard_arrays(
                table_set(table("t", num_embeddings=10**6, embedding_dim=dim)),
                global_batch_size=65536,
                optimizer=Optimizer.ADAM,
            ),
        )[0, 7]
        for dim in (8, 128)
    )

    assert narrow == wide > 0


def test_backward_grows_with_the_rows_to_update() -> None:
    """At equal lookups, spread over more rows, more weights are read and written back."""
    few, many = (seconds(busy(num_embeddings=rows, zipf_exponent=0.0))[BACKWARD] for rows in (10**6, 10**7))

    assert few < many


@pytest.mark.parametrize("dim", [4, 64, 512])
def test_optimizers_with_more_state_cost_more(dim: int) -> None:
    """SGD has no state, row-wise Adagrad one number per row, Adagrad one per weight, Adam two."""
    order = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD, Optimizer.ADAM)
    times = [seconds(busy(embedding_dim=dim), optimizer=optimizer) for optimizer in order]

    assert all(less[BACKWARD] <= more[BACKWARD] for less, more in pairwise(times))
    assert times[0][BACKWARD] < times[1][BACKWARD]
    assert len({float(time[FORWARD]) for time in times}) == 1


def test_narrower_weights_are_read_faster() -> None:
    """Half the bytes per weight cost less, but not half."""
    fp32, fp16 = (kernels(busy(data_type=data_type)) for data_type in (DataType.FP32, DataType.FP16))

    assert (fp16 < fp32).all()
    assert fp16[FORWARD] > 0.5 * fp32[FORWARD]


def test_a_small_call_that_waits_for_the_host_costs_its_launch() -> None:
    """Without a pipeline one sample on one tiny table takes what the host needs, and next to nothing more."""
    tiny = table(num_embeddings=10, embedding_dim=4)

    assert seconds(tiny, batch=1, pipeline=Pipeline.NONE) == pytest.approx(HOST_SECONDS, rel=5e-3)


def test_a_small_call_in_a_pipeline_costs_the_device_alone() -> None:
    """Where the host runs ahead, the same call takes its least time on the device."""
    tiny = table(num_embeddings=10, embedding_dim=4)

    assert seconds(tiny, batch=1) == pytest.approx(DEVICE_SECONDS, rel=1e-2)


def test_a_long_call_hides_the_launch() -> None:
    """The host's launch of a call that computes for milliseconds costs less than 1 %."""
    members = [busy(name=f"t{index}") for index in range(8)]
    alone, queued = (seconds(*members, pipeline=pipeline) for pipeline in (Pipeline.NONE, Pipeline.SPARSE_DIST))

    assert (queued < alone).all()
    assert (alone < 1.01 * queued).all()


@pytest.mark.parametrize("pipeline", list(Pipeline))
def test_each_data_type_is_a_call(pipeline: Pipeline) -> None:
    """A device with tables of two types launches two kernels; tables of one type share one."""
    small = table("a", num_embeddings=10, embedding_dim=4)
    alike = table("b", num_embeddings=10, embedding_dim=4)
    other = table("b", num_embeddings=10, embedding_dim=4, data_type=DataType.FP16)

    one, two = (seconds(small, second, batch=1, pipeline=pipeline) for second in (alike, other))

    assert two == pytest.approx(2 * one, rel=1e-2)


def test_one_wide_table_slows_the_narrow_ones_of_its_call() -> None:
    """Bags of up to 32 columns share a warp by four, unless a wider table is in the call."""
    hot: dict[str, Any] = {"num_embeddings": 1000, "embedding_dim": 16, "pooling_factor": 50.0}
    narrow = [table(f"t{index}", **hot) for index in range(8)]
    wide = table("wide", num_embeddings=10, embedding_dim=128)
    slow_issue: dict[str, Any] = {"clock_hz": 2e8}

    apart = kernels(*narrow, **slow_issue) + kernels(wide, **slow_issue)

    assert (kernels(*narrow, wide, **slow_issue) > 1.5 * apart).all()


@pytest.mark.parametrize("dim", [16, 128])
def test_neighbors_share_the_bursts_of_row_wise_state(dim: int) -> None:
    """Rows are updated in ascending order: with 4 of 10 rows touched, 4 bytes of state cost less than 10 % more."""
    dense = busy(num_embeddings=6 * 10**6, pooling_factor=50.0, embedding_dim=dim, zipf_exponent=0.0)

    with_state = kernels(dense, optimizer=Optimizer.ROWWISE_ADAGRAD)[BACKWARD]

    assert 1 < with_state / kernels(dense)[BACKWARD] < 1.1


def test_narrower_outputs_are_written_and_read_faster() -> None:
    """Pooled vectors in 16 bit halve what forward writes and what backward reads for every lookup."""
    many = busy(zipf_exponent=1.2, embedding_dim=128)

    fp32, fp16 = (kernels(many, output_data_type=data_type) for data_type in (DataType.FP32, DataType.FP16))

    assert (fp16 < fp32).all()
    assert fp16[BACKWARD] < 0.9 * fp32[BACKWARD]


def test_every_feature_of_a_table_returns_bags_of_its_own() -> None:
    """Ten features with a tenth of the lookups each read the same rows but write ten times the pooled vectors."""
    fields: dict[str, Any] = {"num_embeddings": 10**5, "embedding_dim": 128, "pooling_factor": 10.0}
    one = kernels(table(**fields))
    ten = kernels(table(**fields, feature_names=tuple(f"f{index}" for index in range(10))))

    assert (ten > 1.15 * one).all()


def test_partitions_of_the_cache_hold_copies() -> None:
    """Two partitions leave three quarters of the cache to rows that all multiprocessors read: more reads miss."""
    warm = busy(num_embeddings=10**6, zipf_exponent=0.6)

    assert shared_cache_bytes(device_type(cache_bytes=100, cache_partitions=2)) == 75
    assert (kernels(warm, cache_partitions=2) > kernels(warm)).all()


@pytest.mark.parametrize(
    "better",
    [
        {"memory_bandwidth_bytes_per_second": 6e12},
        {"cache_bandwidth_bytes_per_second": 12e12},
        {"cache_bytes": 200 * 2**20},
        {"clock_hz": 4e9},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_better_device_is_faster(better: dict[str, Any]) -> None:
    """Every number of the data sheet counts for small rows that are hit often, next to some that the cache holds."""
    members = (busy(name="warm", embedding_dim=16, zipf_exponent=0.9), busy(name="hot", num_embeddings=100))

    assert (seconds(*members, **better) <= seconds(*members)).all()
    assert seconds(*members, **better)[FORWARD] < seconds(*members)[FORWARD]


@pytest.mark.parametrize("pooling", [0.01, 1.0, 1000.0])
@pytest.mark.parametrize("rows", [1, 10**13])
def test_extreme_tables_have_a_finite_time(rows: int, pooling: float) -> None:
    """One row or 10^13, one lookup in a hundred samples or a thousand in each."""
    found = seconds(busy(num_embeddings=rows, pooling_factor=pooling))

    assert np.isfinite(found).all()
    assert (found >= DEVICE_SECONDS).all()


shard_tables = st.builds(
    table,
    num_embeddings=st.integers(1, 10**13),
    embedding_dim=st.integers(1, 256).map(lambda quarter: 4 * quarter),
    pooling_factor=st.floats(0.01, 200),
    zipf_exponent=st.floats(0, 2),
    data_type=st.sampled_from((DataType.FP32, DataType.FP16)),
)


@given(base=shard_tables, added=shard_tables, batch=st.integers(1, 2**24), optimizer=st.sampled_from(Optimizer))
def test_adding_a_table_never_makes_a_call_faster(base: Table, added: Table, batch: int, optimizer: Optimizer) -> None:
    """Whatever its type and width: the time is monotone in the demands, the calls and the widest table."""
    pair = (base.model_copy(update={"name": "a"}), added.model_copy(update={"name": "b"}))
    alone = [seconds(member, batch=batch, optimizer=optimizer) for member in pair]

    assert (seconds(*pair, batch=batch, optimizer=optimizer) >= np.maximum(*alone) * (1 - 1e-12)).all()


@given(base=shard_tables, added=shard_tables, optimizer=st.sampled_from(Optimizer))
def test_a_call_costs_at_most_its_tables_one_by_one(base: Table, added: Table, optimizer: Optimizer) -> None:
    """Tables of one width overlap: the time is a convex function of sums."""
    width = {"embedding_dim": base.embedding_dim}
    pair = (base.model_copy(update={"name": "a"}), added.model_copy(update={"name": "b", **width}))

    apart = sum(kernels(member, optimizer=optimizer) for member in pair)

    assert (kernels(*pair, optimizer=optimizer) <= apart * (1 + 1e-12)).all()


@given(st.lists(st.lists(st.floats(0, 1e-2), min_size=NUM_DEMANDS, max_size=NUM_DEMANDS), min_size=2, max_size=2))
def test_the_time_is_convex_in_the_demands(points: list[list[float]]) -> None:
    """The time of the mean demand is at most the mean of the times."""
    first, second = np.array(points)
    middle = (first + second) / 2

    times = combined_seconds(np.array([first, second, middle]), np.ones(3))

    assert (times[2] <= times[:2].mean(axis=0) * (1 + 1e-12)).all()

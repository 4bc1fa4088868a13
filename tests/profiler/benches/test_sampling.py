"""Specification of the table sets that are measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_costs.shards import BYTES_PER_ELEMENT
from neuroshard_profiler.benches.sampling import CPU_SPACE, GPU_SPACE, SampleSpace, draw_compute_sample
from support.builders import table, table_set

JOB = table_set(
    table("huge", num_embeddings=10**9, embedding_dim=128),
    table("small", num_embeddings=10, embedding_dim=4, data_type=DataType.FP16),
    table("hot", num_embeddings=1000, embedding_dim=64, pooling_factor=40.0, zipf_exponent=None),
    zipf_exponent=1.1,
)


def space_of_job(**fields: Any) -> SampleSpace:
    """Return the CPU's space with a job of three tables."""
    return replace(CPU_SPACE, job=JOB, job_batch_size=512, **fields)


def _num_bytes(sample: ComputeSample) -> int:
    return sum(each.num_embeddings * each.embedding_dim * BYTES_PER_ELEMENT[each.data_type] for each in sample.tables)


@given(seed=st.integers(0, 2**32), max_bytes=st.integers(2**14, 2**28), max_lookups=st.integers(2**14, 2**18))
def test_a_sample_keeps_the_bounds_of_its_space(seed: int, max_bytes: int, max_lookups: int) -> None:
    """Neither memory nor time of a sample is a surprise; every set has a table, and every table a row."""
    space = space_of_job(
        max_bytes=max_bytes, max_job_bytes=max_bytes, max_lookups=max_lookups, data_types=(DataType.FP32, DataType.FP16)
    )
    sample = draw_compute_sample(space, np.random.default_rng(seed))
    num_bytes = _num_bytes(sample)
    lookups = sample.batch_size * sum(each.pooling_factor for each in sample.tables)
    one_row_each = sum(4 * each.embedding_dim for each in sample.tables)

    assert num_bytes <= max(max_bytes, one_row_each)
    assert lookups <= max_lookups * (1 + 1e-9) or len(sample.tables) == 1
    assert 1 <= len(sample.tables) <= space.max_tables
    assert {each.data_type for each in sample.tables} <= set(space.data_types)


def test_equal_seeds_draw_equal_samples() -> None:
    """A run that goes on after a stop measures what one without a stop would have."""
    first, second = (draw_compute_sample(space_of_job(), np.random.default_rng(7)) for _ in range(2))

    assert first == second


def test_about_half_of_the_samples_are_made_of_the_jobs_tables() -> None:
    """They have the job's batch, its tables' rows and pooling, and some have slices of columns."""
    samples = [draw_compute_sample(space_of_job(), np.random.default_rng(seed)) for seed in range(200)]
    of_job = [
        sample for sample in samples if sample.batch_size == 512 and sample.tables[0].name in {"huge", "small", "hot"}
    ]
    hot = [each for sample in of_job for each in sample.tables if each.name == "hot"]

    assert 70 <= len(of_job) <= 130
    assert {each.pooling_factor for each in hot} == {40.0}
    assert {each.zipf_exponent for each in hot} == {1.1}
    assert {each.embedding_dim for each in hot} >= {64, 32}


def test_a_type_that_cannot_be_timed_is_replaced() -> None:
    """FBGEMM has no 8-bit tables on a CPU; their lookups and rows still count."""
    samples = [draw_compute_sample(space_of_job(), np.random.default_rng(seed)) for seed in range(50)]

    assert {each.data_type for sample in samples for each in sample.tables} == {DataType.FP32}


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAGRAD])
def test_only_the_optimizers_of_the_space_are_drawn(optimizer: Optimizer) -> None:
    """A job has one optimizer, and time is short."""
    space = space_of_job(optimizers=(optimizer,))

    assert {draw_compute_sample(space, np.random.default_rng(seed)).optimizer for seed in range(20)} == {optimizer}


def test_sets_for_a_gpu_have_enough_lookups_as_far_as_the_batch_allows() -> None:
    """Smaller calls would take less time than the device needs to start them."""
    samples = [draw_compute_sample(GPU_SPACE, np.random.default_rng(seed)) for seed in range(100)]
    lookups = [sample.batch_size * sum(each.pooling_factor for each in sample.tables) for sample in samples]

    assert all(
        count >= 0.99 * GPU_SPACE.min_lookups or sample.batch_size == GPU_SPACE.batch_sizes[1]
        for count, sample in zip(lookups, samples, strict=True)
    )
    assert sum(count >= 0.99 * GPU_SPACE.min_lookups for count in lookups) > 70


def test_repeated_lists_of_a_job_are_measured_and_left_out() -> None:
    """Tables of a duplication group have all lookups and hits in some sets, those of distinct lists in others.

    Sets of jobs without repeats are drawn as if there were none.
    """
    histogram = (0.0, 0.0, 0.0, 1.0, *(0.0,) * 13)  # 5 to 8 hits
    plain = table_set(
        table("user", pooling_factor=20.0, reuse_histogram=histogram), table("item"), reuse_batch_size=512
    )
    user = plain.tables[0].model_copy(update={"duplication_group": "user", "duplication_factor": 4.0})
    repeating = plain.model_copy(update={"tables": (user, plain.tables[1]), "session_run": 8})
    spaces = [replace(CPU_SPACE, job=job, job_batch_size=512) for job in (plain, repeating)]

    pairs = [[draw_compute_sample(space, np.random.default_rng(seed)) for space in spaces] for seed in range(80)]

    found = {each.pooling_factor: each for _, sample in pairs for each in sample.tables if each.name == "user"}
    assert set(found) == {5.0, 20.0}
    assert found[20.0].reuse_histogram == histogram
    few = found[5.0].reuse_histogram
    assert few is not None
    assert few[0] + few[1] > 0.9
    assert all(
        first == second
        for first, second in pairs
        if all(each.name != "user" or each.pooling_factor == user.pooling_factor for each in second.tables)
    )


@given(seed=st.integers(0, 2**32))
def test_a_set_that_no_kernel_trains_has_the_usual_type(seed: int) -> None:
    """Adam's kernel refuses FP16 on GPUs: such a set is drawn as FP32, within the same memory."""
    refused = frozenset({(Optimizer.ADAM, DataType.FP16)})
    max_bytes = 2**20
    space = space_of_job(
        max_bytes=max_bytes,
        max_job_bytes=max_bytes,
        data_types=(DataType.FP32, DataType.FP16),
        optimizers=(Optimizer.SGD, Optimizer.ADAM),
        refused=refused,
    )
    sample = draw_compute_sample(space, np.random.default_rng(seed))

    assert not any((sample.optimizer, each.data_type) in refused for each in sample.tables)
    assert _num_bytes(sample) <= max_bytes
    same = draw_compute_sample(replace(space, refused=frozenset()), np.random.default_rng(seed))
    assert (same.batch_size, len(same.tables)) == (sample.batch_size, len(sample.tables))
    assert sample == same or sample.optimizer is Optimizer.ADAM

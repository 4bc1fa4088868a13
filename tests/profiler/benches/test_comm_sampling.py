"""Specification of the all-to-alls that are measured."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.topology import Link
from neuroshard_profiler.benches.comm_sampling import CommunicationSpace, communication_sample
from support.builders import table_set, tables

LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)


def space(*, num_nodes: int = 1, devices_per_node: int = 2, **fields: Any) -> CommunicationSpace:
    """Return a space of that many devices."""
    return CommunicationSpace(
        num_nodes=num_nodes, devices_per_node=devices_per_node, intra_node=LINK, inter_node=LINK, **fields
    )


@given(seed=st.integers(0, 2**32), num_nodes=st.integers(1, 4), per_node=st.integers(1, 8))
def test_a_sample_fits_its_devices_and_its_bound(seed: int, num_nodes: int, per_node: int) -> None:
    """Each device has columns, and the fullest sends no more than allowed."""
    devices = space(num_nodes=num_nodes, devices_per_node=max(per_node, 2))
    sample = communication_sample(devices, seed=0, index=seed)
    num_devices = len(sample.embedding_dim_sums)

    assert num_devices == num_nodes * max(per_node, 2)
    assert min(sample.embedding_dim_sums) >= 4
    assert all(columns % 4 == 0 for columns in sample.embedding_dim_sums)
    sent = max(sample.embedding_dim_sums) * num_devices * sample.batch_size_per_device * sample.bytes_per_element
    assert sent <= devices.max_bytes or sample.batch_size_per_device == 1


def test_samples_are_uneven_skewed_and_of_both_directions() -> None:
    """What is never measured cannot be predicted."""
    samples = [communication_sample(space(), seed=0, index=seed) for seed in range(60)]

    assert {sample.direction for sample in samples} == {"forward", "backward"}
    assert {bool(sample.start_offsets_ms) for sample in samples} == {True, False}
    assert {sample.bytes_per_element for sample in samples} == {2, 4}
    assert max(max(sample.embedding_dim_sums) / np.mean(sample.embedding_dim_sums) for sample in samples) > 1.3


def test_half_of_the_samples_have_the_jobs_batch_and_columns() -> None:
    """A plan spreads the job's columns over the devices."""
    job = table_set(*tables(8, embedding_dim=64))
    devices = space(job=job, job_batch_size_per_device=384)
    samples = [communication_sample(devices, seed=0, index=seed) for seed in range(60)]
    of_job = [sample for sample in samples if sample.batch_size_per_device == 384]

    assert 15 <= len(of_job) <= 45
    assert all(abs(sum(sample.embedding_dim_sums) - 512) <= 8 for sample in of_job)

"""What collectives of weights and gradients take, from records of them."""

import pytest
from neuroshard_api.documents.topology import Link
from neuroshard_costs.fitting.reductions import MIN_SIZES, fitted_reductions
from support.profiler.record_builders import compute_record, reduction_record

SIZES = (4096, 16384, 65536, 262144)


def test_times_that_rise_stay_as_measured() -> None:
    """Of each size the time of the slowest device; other records do not count."""
    records = [reduction_record(size, 0.5 + size / 1e6) for size in reversed(SIZES)]

    (found,) = fitted_reductions([*records, compute_record()])

    assert (found.kind, found.num_nodes, found.devices_per_node) == ("all_gather", 1, 2)
    assert found.num_bytes == SIZES
    assert found.times_ms == pytest.approx([0.5 + size / 1e6 for size in SIZES])


def test_a_size_that_took_longer_than_a_larger_one_has_the_time_of_that_one() -> None:
    """Other work disturbed it, and its neighbors stay as they were measured."""
    times_ms = (0.5, 40.0, 1.0, 8.0)

    (found,) = fitted_reductions([reduction_record(*each) for each in zip(SIZES, times_ms, strict=True)])

    assert found.times_ms == pytest.approx((0.5, 1.0, 1.0, 8.0))


def test_two_records_of_a_size_are_one_size() -> None:
    """Their geometric mean."""
    records = [reduction_record(size, 4.0) for size in SIZES]

    (found,) = fitted_reductions([*records, reduction_record(SIZES[-1], 16.0)])

    assert found.times_ms == pytest.approx((4.0, 4.0, 4.0, 8.0))


def test_each_collective_and_each_group_of_devices_has_times() -> None:
    """In the order of the records; those with few sizes, and those that failed, have none."""
    link = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)
    across = {"num_nodes": 2, "devices_per_node": 1, "intra_node": None, "inter_node": link}
    records = [
        *(reduction_record(size, 1.0) for size in SIZES[:MIN_SIZES]),
        *(reduction_record(size, 2.0, **across) for size in SIZES),
        *(reduction_record(size, 3.0, kind="all_reduce") for size in SIZES[: MIN_SIZES - 1]),
        reduction_record(SIZES[-1], 3.0, kind="all_reduce").model_copy(update={"failure": "no memory"}),
    ]

    first, second = fitted_reductions(records)

    assert first.num_nodes == 1
    assert first.times_ms == pytest.approx((1.0,) * MIN_SIZES)
    assert (second.num_nodes, second.inter_node) == (2, link)
    assert fitted_reductions(()) == ()


def test_links_that_were_measured_again_do_not_part_records() -> None:
    """A manifest has each collective once for its devices: with the links of the last record."""
    again = Link(bandwidth_bytes_per_second=2e9, latency_seconds=2e-5)
    records = [reduction_record(size, 4.0) for size in SIZES]

    (found,) = fitted_reductions([*records, reduction_record(SIZES[-1] * 4, 16.0, intra_node=again)])

    assert found.intra_node == again
    assert found.num_bytes == (*SIZES, SIZES[-1] * 4)

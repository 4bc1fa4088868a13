"""What matrix products cost, from records of them."""

import pytest
from neuroshard_api.documents.bundle import MatrixTimes
from neuroshard_api.documents.records import MatrixSample, ProfileRecord
from neuroshard_api.documents.topology import DeviceType
from neuroshard_costs.fitting.matrices import MIN_RECORDS, fitted_matrices
from neuroshard_costs.simulator.dense import matrices_ms
from support import builders
from support.profiler.record_builders import compute_record

SIZES = ((128, 64), (1024, 64), (128, 1024), (1024, 1024))
"""Samples, and inputs as many as outputs."""


def matrix_record(size: tuple[int, int], *, product_ms: float = 0.02, operation_ms: float = 1e-8) -> ProfileRecord:
    """Return a record of a layer that takes these times, and in backward thrice as long for twice the operations."""
    sample = MatrixSample(batch_size=size[0], num_inputs=size[1], num_outputs=size[1])
    times_ms = product_ms + sample.forward_flops * operation_ms
    return ProfileRecord(source="cpu:some", matrix=sample, forward_ms=times_ms, backward_ms=3 * times_ms)


@pytest.mark.parametrize(("product_ms", "operation_ms"), [(0.02, 1e-8), (0.0, 1e-8), (0.02, 0.0)])
def test_times_of_products_and_operations_are_told_apart(product_ms: float, operation_ms: float) -> None:
    """Whether both cost time or one of them; backward has twice the operations."""
    records = [matrix_record(size, product_ms=product_ms, operation_ms=operation_ms) for size in SIZES]

    found = fitted_matrices([*records, compute_record()])

    assert found is not None
    assert found.product_ms == pytest.approx((product_ms, 3 * product_ms), abs=1e-9)
    assert found.operation_ms == pytest.approx((operation_ms, 1.5 * operation_ms), abs=1e-14)


def test_few_records_are_not_fitted() -> None:
    """Nor are those of layers that failed."""
    records = [matrix_record(size) for size in SIZES[: MIN_RECORDS - 1]]
    failed = ProfileRecord(source="cpu:some", matrix=records[0].matrix, failure="no memory")

    assert fitted_matrices([*records, failed]) is None


@pytest.fixture
def device() -> DeviceType:
    """Return a device."""
    return builders.topology(1).device


def test_a_measured_rate_takes_the_place_of_the_assumed_one(device: DeviceType) -> None:
    """Each pass has its own; without one, both passes have the assumed rate."""
    measured = MatrixTimes(product_ms=(0.1, 0.1), operation_ms=(1e-9, 2e-9))

    assert matrices_ms(1e9, 2e9, device=device, measured=measured) == pytest.approx((1.0, 4.0))
    forward, backward = matrices_ms(1e9, 2e9, device=device, measured=None)
    assert backward == pytest.approx(2 * forward)

"""Times of the dense part: matrix products at a measured or an assumed rate, and how much of them hides collectives."""

from neuroshard_api.documents.bundle import MatrixTimes
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.simulator import constants as c

MS_PER_SECOND = 1e3


def matrices_ms(
    forward_flops: float, backward_flops: float, *, device: DeviceType, measured: MatrixTimes | None
) -> tuple[float, float]:
    """Return the milliseconds, forward and backward, of matrix products with these floating-point operations.

    Args:
        forward_flops: of the forward pass.
        backward_flops: of the backward pass.
        device: has the assumed rate.
        measured: times on it. Operations alone count: dense profiles do not have the number of products.
    """
    if measured is not None:
        forward, backward = measured.operation_ms
        return forward_flops * forward, backward_flops * backward
    per_cycle = c.CPU_OPERATIONS_PER_CYCLE if device.is_cpu else c.MATRIX_OPERATIONS_PER_CYCLE
    rate = per_cycle * device.num_multiprocessors * device.clock_hz
    return MS_PER_SECOND * (forward_flops / rate), MS_PER_SECOND * (backward_flops / rate)


def hidden_ms(compute_ms: float) -> float:
    """Return the milliseconds of a collective that compute of this length hides."""
    return c.DENSE_OVERLAP * compute_ms

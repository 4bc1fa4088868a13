"""Times of the dense part: matrix products at an assumed rate, and how much of them hides collectives."""

from neuroshard_api.topology import DeviceType

from neuroshard_costs.simulator import constants as c

_MS_PER_SECOND = 1000.0


def matrix_ms(device: DeviceType, num_operations: float) -> float:
    """Return the milliseconds of so many floating-point operations of matrix products; simulated, on every device."""
    per_cycle = c.CPU_OPERATIONS_PER_CYCLE if device.is_cpu else c.MATRIX_OPERATIONS_PER_CYCLE
    return num_operations / (per_cycle * device.num_multiprocessors * device.clock_hz) * _MS_PER_SECOND


def hidden_ms(compute_ms: float) -> float:
    """Return the milliseconds of a collective that compute of this length hides."""
    return c.DENSE_OVERLAP * compute_ms

"""Times of the dense part: matrix products at an assumed rate, and how much of them hides collectives."""

from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.simulator import constants as c


def matrix_seconds(device: DeviceType, num_operations: float) -> float:
    """Return the simulated seconds of matrix products with this number of floating-point operations."""
    per_cycle = c.CPU_OPERATIONS_PER_CYCLE if device.is_cpu else c.MATRIX_OPERATIONS_PER_CYCLE
    return num_operations / (per_cycle * device.num_multiprocessors * device.clock_hz)


def hidden_seconds(compute_seconds: float) -> float:
    """Return the seconds of a collective that compute of this length hides."""
    return c.DENSE_OVERLAP * compute_seconds

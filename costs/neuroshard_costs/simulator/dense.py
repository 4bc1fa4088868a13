"""Times of the dense part: matrix products, all that passes through memory, and how much of it hides collectives."""

from neuroshard_api.documents.bundle import MatrixTimes
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.reductions import BLACKWELL_PRODUCTS, HOPPER_PRODUCTS

MS_PER_SECOND = 1e3


def matrices_ms(
    forward_flops: float, backward_flops: float, *, device: DeviceType, measured: MatrixTimes | None
) -> tuple[float, float]:
    """Return the milliseconds, forward and backward, of matrix products with these floating-point operations.

    Args:
        forward_flops: of the forward pass.
        backward_flops: of the backward pass.
        device: has the rate where none was measured.
        measured: times on it. Operations alone count here; what each product takes besides is of `other_ms`.
    """
    if measured is not None:
        forward, backward = measured.operation_ms
        return forward_flops * forward, backward_flops * backward
    rate = matrix_rate(device)
    return MS_PER_SECOND * (forward_flops / rate), MS_PER_SECOND * (backward_flops / rate)


def matrix_rate(device: DeviceType) -> float:
    """Return operations per second of large products: in TF32 on a GPU, in FP32 on a CPU."""
    if device.is_cpu:
        per_cycle = float(c.CPU_OPERATIONS_PER_CYCLE)
    elif device.product in BLACKWELL_PRODUCTS:
        per_cycle = c.BLACKWELL_MATRIX_OPERATIONS_PER_CYCLE * c.MATRIX_EFFICIENCY
    elif device.product in HOPPER_PRODUCTS:
        per_cycle = c.HOPPER_MATRIX_OPERATIONS_PER_CYCLE * c.MATRIX_EFFICIENCY
    else:
        per_cycle = c.MATRIX_OPERATIONS_PER_CYCLE * c.MATRIX_EFFICIENCY
    return per_cycle * device.num_multiprocessors * device.clock_hz


def other_ms(passes: DensePasses, *, device: DeviceType, measured: MatrixTimes | None) -> float:
    """Return the milliseconds of forward and backward besides the operations of matrix products.

    What each product takes at least, and the traffic of all else: norms, activations, copies.

    Args:
        passes: as they were counted.
        device: its memory is passed through.
        measured: times of products on it; of backward those of a layer, which has two.
    """
    if measured is not None:
        forward, backward = measured.product_ms
        products_ms = passes.forward.products * forward + passes.backward.products / 2 * backward
    else:
        seconds = 0.0 if device.is_cpu else c.PRODUCT_SECONDS
        products_ms = MS_PER_SECOND * seconds * (passes.forward.products + passes.backward.products)
    return products_ms + traffic_ms(passes.forward, device=device) + traffic_ms(passes.backward, device=device)


def traffic_ms(one: DensePass, *, device: DeviceType) -> float:
    """Return the milliseconds of operations that are no products, each a kernel on a GPU."""
    bandwidth = device.memory_bandwidth_bytes_per_second * c.DRAM_EFFICIENCY
    kernels = 0.0 if device.is_cpu else c.DENSE_KERNEL_SECONDS * (one.operations - one.products)
    return MS_PER_SECOND * (kernels + one.moved_bytes / bandwidth)


def hidden_ms(compute_ms: float) -> float:
    """Return the milliseconds of a collective that compute of this length hides."""
    return c.DENSE_OVERLAP * compute_ms

"""Times of the dense part: products by the peak of their device's generation, and all else by its traffic."""

import pytest
from neuroshard_api.documents.bundle import MatrixTimes
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.presets import preset
from neuroshard_costs.simulator.dense import matrix_rate, other_ms, traffic_ms
from support.builders import device_type

NOTHING = DensePass(operations=0, products=0, moved_bytes=0)


def passes(forward: DensePass, backward: DensePass = NOTHING) -> DensePasses:
    """Return a step without an optimizer."""
    return DensePasses(forward=forward, backward=backward, optimizer=NOTHING, num_tensors=2)


@pytest.mark.parametrize(
    ("name", "peak"),
    [("a100-80gb", 156e12), ("h100-80gb", 535e12), ("h200-141gb", 535e12), ("b200-180gb", 1125e12)],
)
def test_products_run_below_the_peak_of_their_device(name: str, peak: float) -> None:
    """TF32 at the clock of the preset: published rates of large products are 62 to 81 % of the data sheets'."""
    assert 0.6 * peak < matrix_rate(preset(name).device) < 0.85 * peak


def test_measured_products_take_what_each_was_measured_to_take() -> None:
    """A layer's backward pass, which is measured as a whole, has two of them."""
    cpu = device_type(name="cpu-test")
    counted = passes(
        DensePass(operations=4, products=4, moved_bytes=0), DensePass(operations=8, products=8, moved_bytes=0)
    )
    measured = MatrixTimes(product_ms=(0.1, 0.3), operation_ms=(1e-9, 1e-9))

    assert other_ms(counted, device=cpu, measured=measured) == pytest.approx(4 * 0.1 + 4 * 0.3)
    assert other_ms(counted, device=cpu, measured=None) == 0


def test_what_is_no_product_takes_its_traffic_and_on_a_gpu_its_kernel() -> None:
    """Twice the bytes take twice as long on a CPU; a GPU has a least time for each kernel."""
    one = DensePass(operations=5, products=2, moved_bytes=10**9)
    two = one.model_copy(update={"moved_bytes": 2 * 10**9})
    cpu, gpu = device_type(name="cpu-test"), device_type()

    assert traffic_ms(two, device=cpu) == pytest.approx(2 * traffic_ms(one, device=cpu))
    kernels_ms = traffic_ms(one, device=gpu) - traffic_ms(one, device=cpu)
    assert kernels_ms == pytest.approx(3 * 0.003)

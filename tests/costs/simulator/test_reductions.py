"""Collectives in which devices add up what each has a part of."""

import numpy as np
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.exchanges import Reduction
from neuroshard_costs.simulator.communication import NetworkColumns
from neuroshard_costs.simulator.device import DeviceSimulator
from neuroshard_costs.simulator.reductions import dense_update_seconds, reduction_seconds

GIB = 2.0**30
REDUCED = (Family.ROWS, Family.NODE_ROWS, Family.REPLICATED)


def simulated_ms(device: str, family: Family, num_bytes: float, **shape: int) -> tuple[float, float]:
    """Return forward and backward milliseconds on nodes of a preset."""
    usual = preset(device)
    reduction = Reduction(topology=usual.topology(**shape), family=family)
    forward, backward = DeviceSimulator(usual.device).reduction_ms(np.array(num_bytes), reduction).tolist()
    return forward, backward


@pytest.mark.parametrize("family", REDUCED)
def test_one_device_adds_up_nothing(family: Family) -> None:
    """There is nobody to add up with, and nothing is copied."""
    assert simulated_ms("h100-80gb", family, GIB, devices_per_node=1) == (0.0, 0.0)


@pytest.mark.parametrize("family", REDUCED)
@pytest.mark.parametrize("num_nodes", [1, 2, 8])
def test_times_never_fall_with_the_bytes(family: Family, num_nodes: int) -> None:
    """Each byte takes its time on the links and in the copies."""
    times = [sum(simulated_ms("a100-80gb", family, num_bytes, num_nodes=num_nodes)) for num_bytes in (0, 1e3, 1e6, 1e9)]

    assert times == sorted(times)
    assert times[-1] > 2 * times[0]


def test_a_ring_leaves_a_node_over_the_cards_of_all_its_devices() -> None:
    """Eight cards of two nodes carry more than the links inside; one card is an eighth of them."""
    forward, _ = simulated_ms("h100-80gb", Family.ROWS, GIB, num_nodes=2)
    alone, _ = simulated_ms("h100-80gb", Family.ROWS, GIB, num_nodes=2, devices_per_node=1)

    assert forward == pytest.approx(15 / 16 * GIB / (0.8 * 450e9) * 1e3, rel=0.15)
    assert alone == pytest.approx(1 / 2 * GIB / (0.94 * 50e9) * 1e3, rel=0.05)


def test_rows_of_a_node_leave_it_as_sums() -> None:
    """Added up inside the node first, each device sends an eighth of what a table in one piece would."""
    forward, backward = simulated_ms("h100-80gb", Family.NODE_ROWS, GIB, num_nodes=2)

    inside, between = 7 / 8 * GIB / (0.8 * 450e9), 1 / 2 * GIB / 8 / (0.94 * 50e9)
    assert forward == pytest.approx((inside + between) * 1e3, rel=0.08)
    assert backward - forward == pytest.approx(2.455 * GIB / 3.35e12 * 1e3)


def test_switches_add_up_gradients_on_one_node_of_h100() -> None:
    """All-reduce has a third more bandwidth than a ring there; not on A100, and not between nodes."""
    h100, a100 = (simulated_ms(name, Family.REPLICATED, GIB)[1] for name in ("h100-80gb", "a100-80gb"))

    assert h100 == pytest.approx(2 * 7 / 8 * GIB / (1.07 * 450e9) * 1e3, rel=0.08)
    assert a100 == pytest.approx(2 * 7 / 8 * GIB / (0.8 * 300e9) * 1e3, rel=0.08)
    assert simulated_ms("h100-80gb", Family.REPLICATED, GIB)[0] == 0.0


def test_switches_of_blackwell_reach_less_of_a_faster_link() -> None:
    """NCCL gives them 0.74 where those of Hopper have 0.85."""
    b200 = simulated_ms("b200-180gb", Family.REPLICATED, 16 * GIB)[1]

    assert b200 == pytest.approx(16 * GIB / (0.61 * 0.74 / 0.85 * 900e9) * 1e3, rel=0.03)


def test_dense_updates_go_through_all_rows() -> None:
    """9.22 passes over the gradient, as TorchRec counts them."""
    device = preset("h100-80gb").device

    assert float(dense_update_seconds(device, 3.35e12)) == pytest.approx(9.22)


def test_columns_are_not_added_up() -> None:
    """Their exchange has a formula of its own."""
    usual = preset("h100-80gb")
    with pytest.raises(ValueError, match="all_to_all_seconds"):
        reduction_seconds(
            usual.device, NetworkColumns.of(usual.topology()), num_bytes=1.0, family=Family.COLUMNS, direction="forward"
        )

"""How a bundle prices collectives of weights and gradients that a profile measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.bundle import BundleManifest, Calibration, ReductionKind, ReductionTimes
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.bundle import CostBundle, load_bundle, save_bundle
from neuroshard_costs.exchanges import Reduction
from neuroshard_costs.simulator.device import DeviceSimulator
from support.builders import bundle_manifest, topology
from support.planner.bundle_builders import manifest, weights

DEVICES = topology(8)
SIZES = (2**12, 2**16, 2**20)


def times(kind: ReductionKind, *times_ms: float, devices: Topology = DEVICES) -> ReductionTimes:
    """Return measured times of a collective of one node."""
    return ReductionTimes(
        kind=kind,
        num_nodes=1,
        devices_per_node=devices.devices_per_node,
        intra_node=devices.intra_node,
        num_bytes=SIZES,
        times_ms=times_ms,
    )


MEASURED = (
    times("all_gather", 1.0, 4.0, 16.0),
    times("reduce_scatter", 2.0, 8.0, 32.0),
    times("all_reduce", 3.0, 12.0, 48.0),
)


def bundle(folder: Path, *reductions: ReductionTimes, **fields: Any) -> CostBundle:
    """Return a bundle with these times."""
    made = manifest(reductions=reductions).model_copy(update=fields)
    save_bundle(folder / "b", made, weights())
    return load_bundle(folder / "b")


def priced(costs: CostBundle, num_bytes: float, family: Family, devices: Topology = DEVICES) -> Any:
    """Return the forward and backward times."""
    return costs.reduction_ms(np.array(num_bytes), Reduction(topology=devices, family=family))


@pytest.mark.parametrize(
    ("num_bytes", "share"),
    [(2**12, 1.0), (2**14, 2.0), (2**16, 4.0), (2**20, 16.0), (2**21, 32.0), (1.0, 1.0)],
    ids=["first", "between", "second", "last", "above", "below"],
)
def test_measured_times_take_the_place_of_the_simulators(tmp_path: Path, num_bytes: float, share: float) -> None:
    """Between sizes by their logarithms; fewer bytes as the least, more in proportion."""
    costs = bundle(tmp_path, *MEASURED)

    assert priced(costs, num_bytes, Family.ROWS) == pytest.approx([2 * share, share])
    assert priced(costs, num_bytes, Family.REPLICATED) == pytest.approx([0.0, 3 * share])


def test_times_never_fall(tmp_path: Path) -> None:
    """With more bytes."""
    costs = bundle(tmp_path, *MEASURED)
    num_bytes = np.geomspace(1, 2**30, 200)

    found = costs.reduction_ms(num_bytes, Reduction(topology=DEVICES, family=Family.ROWS))

    assert found.shape == (200, 2)
    assert (np.diff(found, axis=0) >= 0).all()


@pytest.mark.parametrize(
    ("devices", "family"),
    [
        (topology(4), Family.ROWS),
        (topology(8, num_nodes=2), Family.ROWS),
        (DEVICES.model_copy(update={"intra_node": DEVICES.inter_node}), Family.ROWS),
        (topology(1), Family.ROWS),
        (DEVICES, Family.NODE_ROWS),
    ],
    ids=["fewer", "two nodes", "other link", "single", "other collectives"],
)
def test_what_was_not_measured_is_as_simulated(tmp_path: Path, devices: Topology, family: Family) -> None:
    """Other devices, other links, and collectives that are not among the measured ones."""
    costs = bundle(tmp_path, *MEASURED)
    reduction = Reduction(topology=devices, family=family)
    simulated = DeviceSimulator(costs.manifest.device).reduction_ms(np.array(1e6), reduction)

    assert priced(costs, 1e6, family, devices).tolist() == simulated.tolist()


def test_a_direction_that_was_not_measured_is_as_simulated(tmp_path: Path) -> None:
    """The other one has its measured time."""
    costs = bundle(tmp_path, MEASURED[0])
    simulated = DeviceSimulator(costs.manifest.device).reduction_ms(
        np.array(2.0**16), Reduction(topology=DEVICES, family=Family.ROWS)
    )

    assert priced(costs, 2**16, Family.ROWS) == pytest.approx([simulated[0], 4.0])


def test_a_nodes_own_collective_is_found_within_several_nodes(tmp_path: Path) -> None:
    """The link between nodes, over which it does not pass, may be any."""
    node = topology(16, num_nodes=2).model_copy(update={"num_nodes": 1, "inter_node": DEVICES.intra_node})

    assert priced(bundle(tmp_path, *MEASURED), 2**16, Family.ROWS, node) == pytest.approx([8.0, 4.0])


def test_factors_of_steps_hold_for_measured_times(tmp_path: Path) -> None:
    """A calibration by steps rescales what the bundle predicts."""
    calibration = Calibration(
        source="cpu:some",
        num_records=2,
        compute_scale=(1.0, 1.0),
        reduction_factors={Family.ROWS: (2.0, 3.0)},
        mape_before=0.1,
        mape_after=0.1,
    )

    costs = bundle(tmp_path, *MEASURED, calibration=calibration)

    assert priced(costs, 2**16, Family.ROWS) == pytest.approx([16.0, 12.0])


def test_shards_are_waited_for_where_gloo_was_measured(tmp_path: Path) -> None:
    """On CPUs; without measured times the price is as before."""
    cpu = DEVICES.device.model_copy(update={"name": "cpu-some"})

    assert bundle(tmp_path, *MEASURED, device=cpu).waits_for_shards
    assert not bundle(tmp_path, device=cpu).waits_for_shards
    assert not bundle(tmp_path, *MEASURED).waits_for_shards


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"times_ms": (1.0,)}, "times_ms: must have 3 entries, found 1"),
        ({"times_ms": (1.0, 3.0, 2.0)}, "times_ms: must not fall"),
        ({"times_ms": (0.0, 1.0, 2.0)}, "greater than 0"),
        ({"num_bytes": (1, 4, 4)}, "num_bytes: must ascend"),
        ({"intra_node": None}, "intra_node: must be given"),
    ],
)
def test_broken_times_are_named(broken: dict[str, Any], message: str) -> None:
    """Each field by its name."""
    with pytest.raises(ValueError, match=message):
        ReductionTimes(**{**MEASURED[0].model_dump(), **broken})


def test_a_collective_is_there_once() -> None:
    """For its devices."""
    with pytest.raises(ValueError, match=r"reductions\[\]: all_gather over 1 x 8 devices must be there once"):
        bundle_manifest(reductions=(MEASURED[0], MEASURED[0]))
    assert isinstance(bundle_manifest(reductions=MEASURED), BundleManifest)


def test_no_bytes_cost_what_they_did_before(tmp_path: Path) -> None:
    """The least measured size says nothing of a unit without parameters."""
    measured, simulated = bundle(tmp_path, *MEASURED), bundle(tmp_path)

    assert priced(measured, 0, Family.ROWS) == pytest.approx(priced(simulated, 0, Family.ROWS))

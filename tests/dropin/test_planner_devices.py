"""For which devices the drop-in plans: of TorchRec's topology, of the process group, of this process."""

import logging
import os

import pytest
import torch
from neuroshard_api.documents.presets import preset
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import POD_SIZE_VARIABLE
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.own_costs import OwnCosts
from neuroshard_torchrec import DropInError, TorchRecCosts
from neuroshard_torchrec.devices import planned_devices, require_devices_of
from support.dropin.dropin_models import TwoTowers
from support.dropin.dropin_planners import planned, planner
from torchrec.distributed.planner.types import (
    BasicCommsBandwidths,
    CustomTopologyData,
    ParameterConstraints,
    Topology,
)


class Uneven(BasicCommsBandwidths):  # type: ignore[misc] # torchrec has no types
    """Links of a user's own."""


def test_processes_and_memory_are_those_of_torchrecs_topology() -> None:
    """Links and speed are the preset's."""
    topology = Topology(world_size=8, compute_device="cuda", local_world_size=4, hbm_cap=20 * 2**30)
    made = planner(topology=topology)
    made.plan(TwoTowers())
    request = planned(made).request

    assert (request.topology.num_nodes, request.topology.devices_per_node) == (2, 4)
    assert request.topology.intra_node == preset("h100-80gb").intra_node
    assert request.constraints.max_memory_bytes_per_device == 20 * 2**30


def test_pods_of_torchrecs_topology_are_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their links are those of a node, tables are cut by their rows, and TorchRec deals them out so."""
    monkeypatch.setenv(POD_SIZE_VARIABLE, "")
    monkeypatch.delenv(POD_SIZE_VARIABLE)
    given = {"world_size": 8, "compute_device": "cuda", "local_world_size": 2}
    by_node = {"tags": ParameterConstraints(sharding_types=["table_row_wise"])}
    made = planner(topology=Topology(**given, pod_size=2), constraints=by_node)
    made.plan(TwoTowers())
    plan = planned(made)

    assert (plan.request.topology.num_domains, plan.request.topology.devices_per_domain) == (2, 4)
    table = next(each for each in plan.tables if each.name == "tags")
    assert (table.sharding_type, len(table.shards)) == (ShardingType.TABLE_ROW_WISE, 4)
    assert os.environ[POD_SIZE_VARIABLE] == "2"
    planner(topology=Topology(**given), constraints=by_node).plan(TwoTowers())
    assert POD_SIZE_VARIABLE not in os.environ
    monkeypatch.setenv(POD_SIZE_VARIABLE, "4")
    with pytest.raises(DropInError, match=f"on domains of 1 nodes, {POD_SIZE_VARIABLE} is 4; hint: set it to 1"):
        planner(topology=Topology(**given), constraints=by_node).plan(TwoTowers())


@pytest.mark.parametrize("pod_size", [3, 0])
def test_pods_that_no_number_of_nodes_fills_are_refused(pod_size: int) -> None:
    """Zero too, which TorchRec's topology takes."""
    given = {"world_size": 8, "compute_device": "cuda", "local_world_size": 2}
    with pytest.raises(DropInError, match=rf"pod_size must divide the number of nodes \(found {pod_size} and 4\)"):
        planner(topology=Topology(**given, pod_size=pod_size)).plan(TwoTowers())


def test_a_topology_of_ours_is_taken_as_it_is() -> None:
    """So any device that has cost models can be planned for."""
    topology = preset("a100-80gb").topology(num_nodes=1, devices_per_node=2)
    made = planner(topology=topology, device_type="a100-80gb")
    made.plan(TwoTowers())

    assert planned(made).request.topology == topology


def test_a_gpu_is_named_where_the_process_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is assumed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DropInError, match="this process sees no GPU"):
        planner(device_type=None).plan(TwoTowers())


def test_the_device_is_the_process_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver's name of the product; one without cost models is named."""
    product = preset("a100-80gb").device.product
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: product.replace("-", " "))
    made = planner(device_type=None)
    made.plan(TwoTowers())

    assert planned(made).request.topology.device == preset("a100-80gb").device
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA GTX 970")
    with pytest.raises(DropInError, match="no cost models of a NVIDIA GTX 970"):
        planner(device_type=None).plan(TwoTowers())


@pytest.mark.parametrize(("name", "value"), [("LOCAL_WORLD_SIZE", "0"), ("WORLD_SIZE", "x"), ("WORLD_SIZE", "-2")])
def test_a_launchers_variable_that_is_no_count_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found."""
    monkeypatch.setenv(name, value)
    with pytest.raises(DropInError, match=f"{name}: is '{value}', not a number of processes"):
        planner(topology=None).plan(TwoTowers())


@pytest.mark.parametrize(
    ("ranks", "nodes", "per_node"), [([0, 1], 1, 2), ([0, 4], 2, 1), ([4, 5, 6, 7], 1, 4), (list(range(8)), 2, 4)]
)
def test_a_group_of_some_ranks_has_their_devices(
    ranks: list[int], nodes: int, per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the world; ranks lie on nodes as the launcher numbers them."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found = planned_devices(None, device_type="h100-80gb", bundle=None, ranks=ranks).topology

    assert (found.num_nodes, found.devices_per_node) == (nodes, per_node)


def test_a_group_with_unlike_parts_of_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topology has as many devices in each node."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(DropInError, match="nodes have 2, 1 processes of the group"):
        planned_devices(None, device_type="h100-80gb", bundle=None, ranks=[0, 1, 4])


@pytest.mark.parametrize(
    ("per_node", "ranks", "accepted"),
    [(4, [0, 1, 2, 3], True), (4, [0, 2, 4, 6], False), (2, [0, 2, 4, 6], False), (2, [0, 1, 4, 5], True)],
)
def test_a_topology_has_the_nodes_of_the_group(
    per_node: int,
    ranks: list[int],
    accepted: bool,  # noqa: FBT001 - the case
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many devices on each node as the launcher started of the group's processes there: here of 4 per node, or 2."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(per_node))
    topology = preset("h100-80gb").topology(num_nodes=4 // per_node, devices_per_node=per_node)
    if accepted:
        require_devices_of(topology, ranks)
        return
    with pytest.raises(DropInError, match=rf"has {per_node} devices on each node.* has \d processes on each"):
        require_devices_of(topology, ranks)


@pytest.mark.parametrize(
    ("device", "name", "cap"), [("cuda", "hbm_cap", 0), ("cuda", "hbm_cap", -5), ("cpu", "ddr_cap", 0)]
)
def test_a_cap_of_nothing_is_refused(device: str, name: str, cap: int) -> None:
    """It is not the same as none."""
    with pytest.raises(DropInError, match=rf"topology: {name} must be at least 1 byte \(found {cap}\); hint: "):
        planner(topology=Topology(world_size=2, compute_device=device, **{name: cap})).plan(TwoTowers())


def test_memory_of_ranks_on_cpus_is_their_ddr_cap(caplog: pytest.LogCaptureFixture) -> None:
    """TorchRec's default of it limits nothing, as that of hbm_cap; messages name it."""
    made = planner(topology=Topology(world_size=2, compute_device="cpu", ddr_cap=2**34))
    made.plan(TwoTowers())
    assert planned(made).request.constraints.max_memory_bytes_per_device == 2**34

    with caplog.at_level(logging.WARNING):
        planner(topology=Topology(world_size=2, compute_device="cpu")).plan(TwoTowers())
    assert "ddr_cap" not in caplog.text
    with pytest.raises(DropInError, match="ddr_cap") as refused:
        planner(topology=Topology(world_size=2, compute_device="cpu", ddr_cap=2**10)).plan(TwoTowers())
    assert "hbm_cap" not in str(refused.value)


def test_a_cap_may_be_a_decimal_number(caplog: pytest.LogCaptureFixture) -> None:
    """As a share of a device's memory is; one above the device's memory is reported."""
    made = planner(topology=Topology(world_size=2, compute_device="cuda", hbm_cap=0.25 * 2**36))
    made.plan(TwoTowers())
    assert planned(made).request.constraints.max_memory_bytes_per_device == 2**34

    with caplog.at_level(logging.WARNING):
        planner(topology=Topology(world_size=2, compute_device="cuda", hbm_cap=2**38)).plan(TwoTowers())
    assert "its hbm_cap is 256 GiB; a h100-80gb has " in caplog.text


def test_unequal_memory_of_devices_and_hosts_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The least counts, since a table that is cut by rows is on all."""
    data = {"hbm_cap": [2**34, 2**35], "ddr_cap": [2**36, 2**30]}
    unequal = Topology(2, "cuda", custom_topology_data=CustomTopologyData(data, 2))
    with caplog.at_level(logging.WARNING):
        planner(topology=unequal).plan(TwoTowers())

    assert "its devices have 16 GiB to 32 GiB of hbm; all are planned with the least" in caplog.text
    assert "its devices have 1 GiB to 64 GiB of ddr" in caplog.text


def test_what_a_topology_says_of_links_and_speed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """What differs from TorchRec's defaults: the preset's counts. A user's own cost model may use it."""
    given = {"world_size": 2, "compute_device": "cuda", "hbm_cap": 80 * 2**30}
    with caplog.at_level(logging.WARNING, logger="neuroshard_torchrec"):
        planner(topology=Topology(**given)).plan(TwoTowers())
        assert "without effect" not in caplog.text
        slow = {"intra_host_bw": 1e6, "hbm_mem_bw": 2e9, "bwd_compute_multiplier": 3}
        planner(topology=Topology(**given, **slow)).plan(TwoTowers())
        planner(topology=Topology(**given, generalized_comms_bandwidths=Uneven(1, 2))).plan(TwoTowers())

    named = "hbm_mem_bw, intra_host_bw, bwd_compute_multiplier"
    assert f"topology: {named}: without effect, as links and speed are those of h100-80gb" in caplog.text
    assert "generalized_comms_bandwidths: without effect" in caplog.text
    costs = OwnCosts(
        TorchRecCosts(Topology(**given)),
        base=bundled_bundle("h100-80gb"),
        name="theirs",
        version="1",
        compute_mape=0.1,
        communication_mape=0.1,
    )
    fast = planned_devices(Topology(**given, intra_host_bw=1e6), device_type=None, bundle=costs)
    assert fast.warnings == ()

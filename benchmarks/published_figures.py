"""Published rates of links and memory, exchanges and whole steps, each with what the simulator gives for it.

A step is held against the embedding part of the plan that the planner finds for the same model, batch and devices: what
HugeCTR replicates and overlaps is not in it, so that it is a check of magnitude in one direction only.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from neuroshard_api.documents.presets import DevicePreset, preset
from neuroshard_api.documents.request import MemorySettings, Pipeline, PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer, Table, TableSet
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.simulator import constants
from neuroshard_costs.simulator.communication import Direction, NetworkColumns, all_to_all_seconds
from neuroshard_costs.simulator.compute import kernel_seconds
from neuroshard_costs.simulator.device import DeviceSimulator
from neuroshard_costs.simulator.reductions import reduction_seconds
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import simulated_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.workload_store import read_workload, workload_names

DATA = Path(__file__).parent / "data" / "published_steps_and_links.json"
H100, B200 = "h100-80gb", "b200-180gb"
DCNV2_DIM = 128
GATHERED_COLUMNS = 1024
RATIO_BATCH = 65_536
MS = 1000.0


class Figure(NamedTuple):
    """One published figure and what the simulator gives for it, in the unit of the source."""

    name: str
    basis: str
    published: float
    simulated: float | tuple[float, float] | None
    """A range over the public models where the published workload is not known. None: nothing to compare."""
    unit: str
    comparable: str

    @property
    def error(self) -> float | None:
        """Simulated over published, less 1. None: there is no single number."""
        return self.simulated / self.published - 1 if isinstance(self.simulated, float) else None


def figures(*, with_steps: bool) -> Iterator[Figure]:
    """Yield every published figure. ``with_steps``: also search the plans of whole steps, which takes seconds."""
    for entry in json.loads(DATA.read_text(encoding="utf-8"))["figures"]:
        if entry["quantity"] == "step" and not with_steps:
            continue
        yield Figure(
            entry["name"],
            entry["basis"],
            entry["published"],
            _SIMULATED[entry["quantity"]](entry),
            entry["unit"],
            entry["comparable"],
        )


def _link_rate(entry: dict[str, Any]) -> float:
    """Return the share of a link's rate under the simulator."""
    inside = entry["level"] == "intra_node"
    return float(entry["of_peak"] * (constants.INTRA_NODE_EFFICIENCY if inside else constants.INTER_NODE_EFFICIENCY))


def _bus_rate(entry: dict[str, Any]) -> float:
    """Return the bus bandwidth of a collective: bytes over time, times what each device must send of a byte."""
    usual, num_bytes = preset(entry["device"]), entry["gibibytes"] * 2.0**30
    topology = usual.topology(num_nodes=entry["num_nodes"], devices_per_node=entry["devices_per_node"])
    inter_node = topology.inter_node.model_copy(
        update={"bandwidth_bytes_per_second": entry["inter_node_bytes_per_second"]}
    )
    topology = topology.model_copy(update={"inter_node": inter_node})
    network, share = NetworkColumns.of(topology), 1 - 1 / topology.num_devices
    if entry["collective"] == "all_to_all":
        seconds = all_to_all_seconds(
            usual.device,
            network,
            max_dim_sum=1.0,
            mean_dim_sum=1.0,
            batch_size_per_device=num_bytes / topology.num_devices,
            bytes_per_element=1,
            direction="forward",
        )
        return float(share * num_bytes / seconds)
    is_scatter = entry["collective"] == "reduce_scatter"
    adds_in_switches = entry["collective"] == "all_reduce"
    seconds = reduction_seconds(
        usual.device if adds_in_switches else usual.device.model_copy(update={"product": "without SHARP"}),
        network,
        num_bytes=num_bytes,
        family=Family.ROWS if is_scatter else Family.REPLICATED,
        direction="forward" if is_scatter else "backward",
    )
    return float((1 if is_scatter else 2) * share * num_bytes / seconds)


def _gather_rate(_: dict[str, Any]) -> float:
    """Return the bytes read and written per second when every row of a table is looked up once."""
    rows = 4_000_000
    table = Table(name="rows", num_embeddings=rows, embedding_dim=GATHERED_COLUMNS)
    shards = shard_arrays(TableSet(zipf_exponent=0.0, tables=(table,)), global_batch_size=rows, optimizer=Optimizer.SGD)
    seconds = kernel_seconds(preset(H100).device, shards, np.zeros(1, dtype=np.int64), 1)[0, 0]
    return float((shards.unique_rows * shards.row_bytes + shards.bags * shards.output_row_bytes)[0] / seconds)


def _backward_ratio(_: dict[str, Any]) -> tuple[float, float]:
    """Return the least and largest backward over forward kernel time of the public models."""
    ratios = []
    for name in workload_names():
        tables = read_workload(name)
        shards = shard_arrays(tables, global_batch_size=RATIO_BATCH, optimizer=Optimizer.ROWWISE_ADAGRAD)
        forward, backward = kernel_seconds(preset(H100).device, shards, np.zeros(len(shards), dtype=np.int64), 1)[0]
        ratios.append(float(backward / forward))
    return min(ratios), max(ratios)


def _step(entry: dict[str, Any]) -> float:
    """Return the simulated seconds of the embedding part of the plan that the planner finds."""
    device = preset(H100)
    topology = _topology(device, entry["devices"])
    request = PlanRequest(
        tables=read_workload("mlperf-dlrm-dcnv2"),
        topology=topology,
        batch_size_per_device=entry["batch"] // entry["devices"],
        optimizer=Optimizer(entry["optimizer"]),
        memory=MemorySettings(output_data_type=DataType.FP16),
        pipeline=Pipeline.SPARSE_DIST,
    )
    bundle = bundled_bundle(H100)
    found = plan(request, bundle=bundle)
    problem = Problem(request, bundle)
    return simulated_cost(problem, placement_of(found.tables, problem)).total_ms / MS


def _exchange(entry: dict[str, Any]) -> float:
    """Return the seconds of both exchanges of the tables, whole and dealt out evenly, in 16 bit."""
    device = preset(B200)
    devices = entry["devices"]
    mean = entry["tables"] * DCNV2_DIM / devices
    largest = -(-entry["tables"] // devices) * DCNV2_DIM

    def one(direction: Direction) -> float:
        return float(
            DeviceSimulator(device.device).communication_ms(
                NetworkColumns.of(_topology(device, devices)),
                max_dim_sum=float(largest),
                mean_dim_sum=mean,
                batch_size_per_device=entry["batch"] // devices,
                bytes_per_element=2,
                direction=direction,
            )
        )

    return (one("forward") + one("backward")) / MS


def _nothing(_: dict[str, Any]) -> None:
    return None


def _topology(device: DevicePreset, num_devices: int) -> Topology:
    return device.topology(num_nodes=num_devices // 8, devices_per_node=8)


_SIMULATED: dict[str, Callable[[dict[str, Any]], float | tuple[float, float] | None]] = {
    "link_rate": _link_rate,
    "gather_rate": _gather_rate,
    "backward_ratio": _backward_ratio,
    "step": _step,
    "exchange": _exchange,
    "bus_rate": _bus_rate,
    "not_simulated": _nothing,
}

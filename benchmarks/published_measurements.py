"""Public measurements, each with what the simulator gives for it in the unit of its source.

benchmarks/data/published_measurements.json has the numbers, their sources, and which sources may set constants. A step
is held against the embedding part of the plan that the planner finds for the same tables, batch, and devices: a
published whole step must not be below it, and says nothing beyond that.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import MemorySettings, Pipeline, PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer, Pooling, Table, TableSet
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import FloatArray, ShardArrays
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.communication import NetworkColumns, all_to_all_seconds, copy_seconds
from neuroshard_costs.simulator.compute import INDEX_CHECK, demand_seconds, kernel_seconds, set_seconds
from neuroshard_costs.simulator.host_memory import cached_seconds, direct_seconds
from neuroshard_costs.simulator.reductions import reduction_seconds
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import simulated_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.workload_store import read_workload

DATA = Path(__file__).parent / "data" / "published_measurements.json"
SECONDS = {"us": 1e6, "ms": 1e3}
BYTES_PER_SECOND = {"GB/s": 1e-9, "TB/s": 1e-12}

Basis = Literal["calibrating", "held out"]
What = Mapping[str, Any]


class Measurement(NamedTuple):
    """One published number."""

    source: str
    basis: Basis
    kind: str
    what: What
    published: float
    unit: str
    not_compared: str | None
    """The reason why the simulator has no number to hold against it."""

    def simulated(self) -> float:
        """Return the simulator's number, in the unit of the published one."""
        return _SIMULATED[self.kind](self.what, self.unit)

    def is_time(self) -> bool:
        """Return whether a larger number is slower; of rates a larger one is faster."""
        return self.unit in SECONDS


def measurements() -> list[Measurement]:
    """Return all published numbers in the order of the file."""
    data = _data()
    return [
        Measurement(
            source=each["source"],
            basis=data["sources"][each["source"]]["basis"],
            kind=each["kind"],
            what=each["what"],
            published=each["published"],
            unit=each["unit"],
            not_compared=each.get("not_compared"),
        )
        for each in data["measurements"]
    ]


def sources() -> Mapping[str, Mapping[str, str]]:
    """Return the sources by their names."""
    found: Mapping[str, Mapping[str, str]] = _data()["sources"]
    return found


@cache
def _data() -> Any:  # noqa: ANN401 - the file is checked by its tests
    return json.loads(DATA.read_text(encoding="utf-8"))


def _device(name: str) -> DeviceType:
    own = _data()["devices"].get(name)
    return preset(name).device if own is None else DeviceType.model_validate(own)


def _tables(what: What) -> TableSet:
    pooling = Pooling.NONE if what["pooling"] is None else Pooling.SUM
    members = (
        Table(
            name=f"t{index}",
            num_embeddings=what["rows"],
            embedding_dim=what["columns"],
            pooling_factor=float(what["pooling"] or 1),
            data_type=DataType(what.get("data_type", "FP32")),
            pooling=pooling,
        )
        for index in range(what["tables"])
    )
    return TableSet(zipf_exponent=what["zipf"], tables=tuple(members))


def _shards(what: What) -> ShardArrays:
    return shard_arrays(
        _tables(what),
        global_batch_size=what["batch"],
        optimizer=Optimizer(what["optimizer"]),
        output_data_type=DataType(what.get("data_type", "FP32")),
    )


def _kernel(what: What, unit: str) -> float:
    """Return the time of one call of a device's tables, or the rate at which rows are gathered."""
    device = _device(what["device"])
    if "gather_columns" in what:
        return _gather_rate(device, what["gather_columns"]) * BYTES_PER_SECOND[unit]
    shards = _shards(what)
    one_call = np.zeros(len(shards), dtype=np.int64)
    if what["time"] == "kernel":
        seconds = kernel_seconds(device, shards, one_call, 1)
    else:
        pipeline = Pipeline.NONE if what["time"] == "alone" else Pipeline.SPARSE_DIST
        seconds = set_seconds(device, shards, one_call, 1, pipeline=pipeline)
    return float((seconds[0] - _index_check_seconds(device, shards))[_pass(what)]) * SECONDS[unit]


def _index_check_seconds(device: DeviceType, shards: ShardArrays) -> FloatArray:
    """Return [2] seconds, forward and backward, of the check of indices: the published benchmarks leave it out."""
    return np.array([demand_seconds(device, shards)[:, INDEX_CHECK].sum(), 0.0])


def _gather_rate(device: DeviceType, columns: int) -> float:
    """Return the bytes read and written per second where lookups of a table that no cache holds return their rows."""
    rows = 4_000_000
    table = Table(name="rows", num_embeddings=rows, embedding_dim=columns, pooling=Pooling.NONE)
    shards = shard_arrays(TableSet(zipf_exponent=0.0, tables=(table,)), global_batch_size=rows, optimizer=Optimizer.SGD)
    seconds = kernel_seconds(device, shards, np.zeros(1, dtype=np.int64), 1)[0, 0]
    seconds -= _index_check_seconds(device, shards)[0]
    return float((shards.lookups * shards.row_bytes + shards.bags * shards.output_row_bytes)[0] / seconds)


def _host_memory(what: What, unit: str) -> float:
    """Return the time of one call of tables in host memory, on one device."""
    usual, shards = preset(what["device"]), _shards(what)
    one_call = np.zeros(len(shards), dtype=np.int64)
    both = set_seconds(usual.device, shards, one_call, 1, pipeline=Pipeline.SPARSE_DIST)[0]
    seconds = (both - _index_check_seconds(usual.device, shards))[_pass(what)]
    if what["memory"] == "fused_uvm":
        added = direct_seconds(usual.host_link, shards, devices_per_node=1)
        return float(seconds + added[:, _pass(what)].sum()) * SECONDS[unit]
    missed = np.full(len(shards), what["missed_rows"] / len(shards))
    added = cached_seconds(usual.device, usual.host_link, shards, missed_rows=missed, devices_per_node=1)
    seconds += added[:, _pass(what)].sum()
    if what.get("counts_misses", False):
        seconds += _counted_seconds(usual.device, shards)
    return float(seconds) * SECONDS[unit]


def _counted_seconds(device: DeviceType, shards: ShardArrays) -> float:
    """Return the seconds in which a benchmark counts the rows that its cache misses (record_cache_miss_counter).

    FBGEMM seeks all lookups once more before it fills the cache, and torch.unique sorts as many 64-bit numbers.
    """
    lookups = shards.lookups.sum()
    sought = c.CACHE_SEARCH_CYCLES * lookups / (device.num_multiprocessors * device.clock_hz)
    sorted_bytes = c.CACHED_KEY_PASS_BYTES * 64 / c.SORT_BITS_PER_PASS * lookups
    return float(sought + sorted_bytes / (device.memory_bandwidth_bytes_per_second * c.SORT_EFFICIENCY))


def _pass(what: What) -> int:
    return ("forward", "backward").index(what["direction"])


def _copy(what: What, unit: str) -> float:
    """Return the rate of a copy in device memory or over the host link."""
    device = _device(what["device"])
    peak = device.memory_bandwidth_bytes_per_second
    match what["copy"]:
        case "device memory":
            rate = 2 * peak * c.DRAM_EFFICIENCY / (1 + c.WRITE_PRICE)
        case "device memory, reads":
            rate = peak * c.DRAM_EFFICIENCY
        case "regroup":
            rate = _regroup_rate(device, what["bytes_per_element"])
        case _:
            rate = preset(what["device"]).host_link.to_device_bytes_per_second * c.HOST_LINK_EFFICIENCY
    return float(rate * BYTES_PER_SECOND[unit])


def _regroup_rate(device: DeviceType, bytes_per_element: int) -> float:
    """Return the bytes read and written per second by the copies around an all-to-all."""
    sizes = {"max_dim_sum": 0.0, "mean_dim_sum": 1024.0, "num_devices": 8.0, "batch_size_per_device": 1e4}
    seconds = copy_seconds(device, **sizes, bytes_per_element=bytes_per_element, direction="forward")
    return float(2 * c.COPIES * 1024.0 * 8 * 1e4 * bytes_per_element / seconds)


def _collective(what: What, unit: str) -> float:
    """Return the time or the bus bandwidth of a collective, as nccl-tests counts it: without copies around it."""
    if what["collective"] == "link between nodes":
        return float(preset(what["device"]).inter_node.bandwidth_bytes_per_second * c.INTER_NODE_EFFICIENCY * 1e-9)
    usual, num_bytes = preset(what["device"]), float(what["bytes"])
    device = usual.device if what.get("switches", True) else usual.device.model_copy(update={"product": "no switches"})
    network = _network(what)
    num_devices = what["nodes"] * what["devices_per_node"]
    share = 1 - 1 / num_devices
    match what["collective"]:
        case "all_to_all":
            sizes = {"max_dim_sum": 1.0, "mean_dim_sum": 0.0, "batch_size_per_device": num_bytes / num_devices}
            seconds = all_to_all_seconds(device, network, **sizes, bytes_per_element=1, direction="forward")
        case "all_reduce":
            family = Family.REPLICATED
            seconds = reduction_seconds(device, network, num_bytes=num_bytes, family=family, direction="backward")
            share *= 2
        case _:
            seconds = reduction_seconds(device, network, num_bytes=num_bytes, family=Family.ROWS, direction="forward")
    if unit == "GB/s bus":
        return float(share * num_bytes / seconds) * 1e-9
    return float(seconds) * SECONDS[unit]


def _network(what: What) -> NetworkColumns:
    topology = preset(what["device"]).topology(num_nodes=what["nodes"], devices_per_node=what["devices_per_node"])
    rates = {"intra_node": what.get("intra_bytes_per_second"), "inter_node": what.get("inter_bytes_per_second")}
    links = {
        name: getattr(topology, name).model_copy(update={"bandwidth_bytes_per_second": rate})
        for name, rate in rates.items()
        if rate is not None
    }
    return NetworkColumns.of(topology.model_copy(update=links))


def step_request(what: What) -> PlanRequest:
    """Return the request for the tables, batch, and devices of a published step."""
    usual, devices = preset(what["device"]), what["devices"]
    return PlanRequest(
        tables=read_workload(what["workload"]),
        topology=usual.topology(num_nodes=max(devices // 8, 1), devices_per_node=min(devices, 8)),
        batch_size_per_device=what["batch"] // devices,
        optimizer=Optimizer(what["optimizer"]),
        memory=MemorySettings(output_data_type=DataType(what["output"])),
        pipeline=Pipeline.SPARSE_DIST,
    )


def _step(what: What, unit: str) -> float:
    """Return the simulated time of the embedding part of the plan that the planner finds."""
    request = step_request(what)
    bundle = bundled_bundle("a100-80gb" if what["device"] == "a100-40gb" else what["device"])
    found = plan(request, bundle=bundle)
    problem = Problem(request, bundle)
    return simulated_cost(problem, placement_of(found.tables, problem)).total_ms / SECONDS["ms"] * SECONDS[unit]


_SIMULATED: Mapping[str, Callable[[What, str], float]] = {
    "kernel": _kernel,
    "host memory": _host_memory,
    "copy": _copy,
    "collective": _collective,
    "step": _step,
}

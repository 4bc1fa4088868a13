"""Builders of documents: they supply everything that does not matter to a test."""

from typing import Any

from neuroshard_api.request import PlanRequest
from neuroshard_api.tables import Table, TableSet
from neuroshard_api.topology import DeviceType, Link, Topology

GIB = 2**30
GB_PER_SECOND = 1e9


def table(name: str = "user", **fields: Any) -> Table:
    """Return a table of a million rows, 64 columns and one lookup per sample, but for the given fields."""
    return Table(**{"name": name, "num_embeddings": 1_000_000, "embedding_dim": 64, **fields})


def tables(count: int, **fields: Any) -> tuple[Table, ...]:
    """Return ``count`` equal tables named t0, t1, ..."""
    return tuple(table(f"t{index}", **fields) for index in range(count))


def table_set(*members: Table, **fields: Any) -> TableSet:
    """Return a set of these tables, or of four equal ones if none are given."""
    return TableSet(**{"name": "test set", "tables": members or tables(4), **fields})


def device_type(**fields: Any) -> DeviceType:
    """Return a device with round numbers of an H100's order, but for the given fields."""
    defaults = {
        "name": "test-80gb",
        "product": "Test Device 80GB",
        "memory_bytes": 80 * GIB,
        "memory_bandwidth_bytes_per_second": 3000 * GB_PER_SECOND,
        "cache_bytes": 50 * 2**20,
        "cache_bandwidth_bytes_per_second": 6000 * GB_PER_SECOND,
        "num_multiprocessors": 128,
        "clock_hz": 1.8e9,
        "source": "made up for tests",
    }
    return DeviceType(**{**defaults, **fields})


def topology(num_devices: int = 4, *, num_nodes: int = 1, memory_bytes: int = 80 * GIB, **fields: Any) -> Topology:
    """Return ``num_devices`` devices spread over ``num_nodes`` nodes: 400 GB/s inside a node, 50 GB/s between nodes."""
    devices_per_node, rest = divmod(num_devices, num_nodes)
    assert not rest, f"{num_devices} devices do not fill {num_nodes} equal nodes"
    defaults = {
        "num_nodes": num_nodes,
        "devices_per_node": devices_per_node,
        "device": device_type(memory_bytes=memory_bytes),
        "intra_node": Link(bandwidth_bytes_per_second=400 * GB_PER_SECOND, latency_seconds=10e-6),
        "inter_node": Link(bandwidth_bytes_per_second=50 * GB_PER_SECOND, latency_seconds=20e-6),
    }
    return Topology(**{**defaults, **fields})


def request(*members: Table, num_devices: int = 4, **fields: Any) -> PlanRequest:
    """Return a request for these tables (or four equal ones) on ``num_devices`` devices of one node."""
    return PlanRequest(**{"tables": table_set(*members), "topology": topology(num_devices), **fields})

"""What the host does in a training step of TorchRec, in milliseconds of the thread that trains. Measures nothing.

One Python thread gives all work to a device: TorchRec's input distribution, lookups and exchanges, then backward (whose
thread works while that one waits), then the optimizer. So its times add up. They depend on how many modules, exchanges,
and tensors there are, and hardly on how much each has to do:

    part               one for each
    step               step: the pipeline, the batch, DistributedDataParallel
    collections        collection
    columns, rows      collection and sharding type whose tables are exchanged
    copies             collection with data_parallel tables
    calls              lookup module of a device: by collection, sharding type, data type, and kernel
    cached_calls       one of these with a cache of host memory, besides
    encoded            exchange with a codec, both directions
    column_tables      table in a collection that is cut by columns
    features           feature
    operations         operation of the dense part, forward, backward, or of its optimizer
    tensors            tensor of its parameters: autograd's accumulation and DistributedDataParallel's hooks
    gathers            all-gather of a sharded module's weights: `fully_shard`'s hooks, buffers, and copies
    scatters           reduce-scatter of its gradients, besides

benchmarks/host_operations.py counts and times the parts on a CPU, where launches cost nothing; its result file holds
settings out. A GPU's host also launches a kernel for each operation that computes. Where a profile has measured how
long the host takes for a lookup module's call, what exceeds the call's processor time is the price of its launches,
and of all others; a faster host does everything faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuroshard_api.documents.bundle import Launch
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType

from neuroshard_costs.simulator.constants import HOST_LAUNCH_SECONDS

REFERENCE = "an Intel Xeon of 2026, benchmarks/results/host-operations_2-core-x86-64_2026-11-26.md"
_MS_PER_SECOND = 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class HostWork:
    """How many of each part a step has."""

    collections: int = 1
    columns: int = 0
    rows: int = 0
    copies: int = 0
    calls: int = 0
    cached_calls: int = 0
    encoded: int = 0
    column_tables: int = 0
    features: int = 0
    operations: int | None = None
    """Of the dense part. None: not counted."""
    tensors: int = 0
    gathers: int = 0
    """Of weights of sharded modules of the dense part."""
    scatters: int = 0
    """Of their gradients."""


class HostTimes(NamedTuple):
    """What the host needs for a step."""

    tables_ms: float
    dense_ms: float | None
    """None: its operations were not counted."""
    launches: int
    source: str
    """``measured:<device>``, or ``assumed:<machine>``."""


class _Part(NamedTuple):
    processor_ms: float
    launches: float = 0.0
    """Kernels on a GPU. Of a call: 4 forward and 12 backward, as the device simulator has them; others as counted."""


_CALL = _Part(0.163, 16)
"""A lookup module's call by itself, forward and backward, as profiles measure it."""
PARTS = {
    "step": _Part(0.996, 8),
    "collections": _Part(0.177),
    "columns": _Part(1.455, 16),
    "rows": _Part(1.414, 18),
    "copies": _Part(0.251, 2),
    "calls": _Part(0.215, 16),
    "cached_calls": _Part(0.0, 20),
    "encoded": _Part(0.175, 6),
    "column_tables": _Part(0.0077),
    "features": _Part(0.0051),
    "operations": _Part(0.0029, 1),
    "tensors": _Part(0.0323, 2),
    "gathers": _Part(0.278, 3),
    "scatters": _Part(0.453, 2),
}
"""A linear layer took 0.0761 ms for four operations and two tensors, an activation 0.0058 for two operations. A cache's
kernels were read from FBGEMM; their processor time is not known, since it has no cache on CPUs. Gathers and scatters
are from benchmarks/shard_overhead.py, the latter with two tensors of a unit, and their kernels were read from torch."""


def host_times(work: HostWork, *, device: DeviceType, launch: Launch) -> HostTimes:
    """Return the host's times of a step.

    Args:
        work: of the step.
        device: a CPU launches no kernels.
        launch: of a call; where it was measured, it says what launches take, or how much faster all parts are.
    """
    launch_ms = 0.0 if device.is_cpu else _MS_PER_SECOND * HOST_LAUNCH_SECONDS
    scale = 1.0
    if launch.host_source is not None:
        call_ms = sum(launch.host_ms)
        if not device.is_cpu:
            launch_ms = max(call_ms - _CALL.processor_ms, 0.0) / _CALL.launches
        scale = call_ms / _ms(_CALL, launch_ms)

    def sums(counts: dict[str, int]) -> tuple[float, float]:
        return (
            scale * sum(number * _ms(PARTS[name], launch_ms) for name, number in counts.items()),
            sum(number * PARTS[name].launches for name, number in counts.items()),
        )

    names = (
        "collections",
        "columns",
        "rows",
        "copies",
        "calls",
        "cached_calls",
        "encoded",
        "column_tables",
        "features",
    )
    tables_ms, launches = sums({"step": 1, **{name: getattr(work, name) for name in names}})
    dense_ms = None
    if work.operations is not None:
        of_dense = ("operations", "tensors", "gathers", "scatters")
        dense_ms, further = sums({name: getattr(work, name) for name in of_dense})
        launches += further
    return HostTimes(
        tables_ms=tables_ms,
        dense_ms=dense_ms,
        launches=0 if device.is_cpu else round(launches),
        source=launch.host_source or f"assumed:{REFERENCE}",
    )


def _ms(part: _Part, launch_ms: float) -> float:
    return part.processor_ms + part.launches * launch_ms


def host_work(
    request: PlanRequest, tables: Sequence[TablePlacement], deduplication: Sequence[DeduplicatedGroup] = ()
) -> HostWork:
    """Return the host's work in a step of tables in some placement, on the device with most lookup modules."""
    by_name = {table.name: table for table in request.tables.tables}
    collections: dict[object, list[tuple[Table, TablePlacement]]] = {}
    for placed in tables:
        table = by_name[placed.name]
        collections.setdefault((table.collection, _grouped(table, deduplication)), []).append((table, placed))
    families = [{Family.of(placed.sharding_type) for _, placed in members} for members in collections.values()]
    columns, by_rows, by_node_rows, copies = (
        sum(family in found for found in families)
        for family in (Family.COLUMNS, Family.ROWS, Family.NODE_ROWS, Family.REPLICATED)
    )
    rows = by_rows + 2 * by_node_rows  # two stages
    cut = [
        sum(placed.sharding_type.is_by_columns for _, placed in members)
        for members in collections.values()
        if any(placed.sharding_type is ShardingType.COLUMN_WISE for _, placed in members)
    ]
    dense = None if request.dense is None else request.dense.passes
    is_encoded = request.wire is not None and not request.wire.is_exact
    return HostWork(
        collections=len(collections),
        columns=columns,
        rows=rows,
        copies=copies,
        calls=_most_calls(collections, request),
        cached_calls=_most_calls(
            {
                name: [pair for pair in members if pair[1].compute_kernel is ComputeKernel.FUSED_UVM_CACHING]
                for name, members in collections.items()
            },
            request,
        ),
        encoded=columns + rows if is_encoded else 0,
        column_tables=sum(cut),
        features=sum(table.num_features for table in request.tables.tables),
        operations=None if dense is None else dense.num_operations,
        tensors=0 if dense is None else dense.num_tensors,
    )


def _most_calls(collections: dict[object, list[tuple[Table, TablePlacement]]], request: PlanRequest) -> int:
    """Return the lookup modules of the device with most: by collection, family, type, and kernel."""
    everywhere: set[object] = set()
    found: list[set[object]] = [set() for _ in range(request.topology.num_devices)]
    for collection, members in collections.items():
        for table, placed in members:
            kind = (collection, Family.of(placed.sharding_type), table.data_type, placed.compute_kernel)
            if placed.sharding_type in (ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE) or kind in everywhere:
                everywhere.add(kind)
                continue
            for shard in placed.shards:
                found[shard.device].add(kind)
    return max(len(each - everywhere) for each in found) + len(everywhere)


def _grouped(table: Table, deduplication: Sequence[DeduplicatedGroup]) -> str | None:
    """Return the group that gives a table a collection of its own. None: there is none."""
    names = set(table.features)
    for group in deduplication:
        if group.form is DeduplicationForm.GROUPED and names <= set(group.features):
            return group.group
    return None

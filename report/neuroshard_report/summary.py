"""What a plan says at a glance: its slowest device, its gain, its split tables. Reads plans, changes none."""

from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_api.documents.dense_layout import DenseGroup
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import BaselineCost, CollectiveCost, DeviceCost, DeviceMemory, TablePlacement
from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.servers import ServerPolicy
from neuroshard_api.documents.tables import Table
from neuroshard_api.process.sizes import format_bytes
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import ShardingType

from neuroshard_report.explain.collections import PlacedCollection, placed_collections
from neuroshard_report.explain.step import step_gain, step_text
from neuroshard_report.explain.trust import trust_of
from neuroshard_report.quantities import format_count, format_ms, format_percent

_DENSE_UPDATE, _HOST_MEMORY = "dense update", "host memory"

COST_TERMS = (
    ("forward_compute_ms", "forward compute"),
    ("wait_ms", "wait"),
    ("input_communication_ms", "index all-to-all"),
    ("forward_communication_ms", "forward collectives"),
    ("backward_communication_ms", "backward collectives"),
    ("backward_compute_ms", "backward compute"),
    ("dense_update_ms", _DENSE_UPDATE),
    ("host_link_ms", _HOST_MEMORY),
)
"""Terms of a device's cost in the order in which a step passes through them, with their names for people."""

EXPANSION_TERM = ("expansion_ms", "expansion")
"""A further term, of plans that leave out repeats."""

SERVER_TERM = ("server_exposed_ms", "wait for servers")
"""A further term, of plans with embedding servers, with which no repeats are left out."""

MEMORY_TERMS = (
    ("weights_bytes", "weights"),
    ("optimizer_state_bytes", "optimizer state"),
    ("activation_bytes", "activations"),
    ("input_bytes", "inputs"),
    ("local_input_bytes", "inputs before the exchange"),
    ("sort_bytes", "sort buffers"),
    ("dense_bytes", "dense part"),
    ("reserve_bytes", "reserve"),
    ("gradient_bytes", "dense gradients"),
    ("cache_bytes", "caches of host memory"),
)
"""Terms of a device's memory ledger, with their names for people."""

MANAGED_COLLISION_TERM = ("managed_collision_bytes", "managed collision")
"""A further term, of plans for modules that map ids to rows."""


def cost_terms(plan: Plan) -> Sequence[tuple[str, str]]:
    """Return the terms of the costs of a plan's devices."""
    if any(cost.server_ms is not None for cost in plan.predicted.devices):
        return (*COST_TERMS, SERVER_TERM)
    expands = all(cost.expansion_ms is not None for cost in plan.predicted.devices)
    return (*COST_TERMS, EXPANSION_TERM) if expands else COST_TERMS


def memory_terms(plan: Plan) -> Sequence[tuple[str, str]]:
    """Return the terms of the memory ledgers of a plan's devices."""
    maps_ids = all(memory.managed_collision_bytes is not None for memory in plan.memory)
    return (*MEMORY_TERMS, MANAGED_COLLISION_TERM) if maps_ids else MEMORY_TERMS


def cost_terms_ms(cost: DeviceCost, terms: Sequence[tuple[str, str]]) -> list[float]:
    """Return the terms of a device's cost in this order."""
    return [getattr(cost, field) for field, _ in terms]


_SIMULATED_NOTES = {
    (False, False): "nothing was measured on a device",
    (True, False): "compute fitted to measurements, exchanges from the simulator",
    (False, True): "exchanges fitted to measurements, compute from the simulator",
    (True, True): "compute and exchanges fitted to measurements",
}
"""By whether the errors of compute and of exchanges are on measurements."""

MOST_NAMED = 5
"""Tables in host memory that are named."""

LEAST_SHARE = 5e-4  # of a step; less is shown as nothing

FEW_SHARDS = 3
"""Shards of one table that are always named one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceView:
    """One device of a plan with its shards."""

    index: int
    node: int
    cost: DeviceCost
    memory: DeviceMemory
    num_shards: int

    @property
    def memory_bytes(self) -> int:
        """Sum of the ledger, the reserve included."""
        return self.memory.used_bytes

    @property
    def memory_share(self) -> float:
        """Share of the capacity that the ledger fills."""
        return self.memory_bytes / self.memory.capacity_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerView:
    """One process of an embedding server."""

    server: int
    process: int
    """Among those of the server."""
    num_shards: int
    lookups_per_sample: float
    exchanged_bytes: int
    """Ids, pooled embeddings, and gradients of a step."""
    cost: DeviceCost
    memory: DeviceMemory

    @property
    def name(self) -> str:
        """What people call it."""
        return f"server {self.server}.{self.process}"

    @property
    def busy_ms(self) -> float:
        """Its time of a step but the wait for slower processes."""
        return self.cost.total_ms - self.cost.wait_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedTable:
    """A table with its shards."""

    table: Table
    placement: TablePlacement

    @property
    def is_split(self) -> bool:
        """Whether the table has more than one shard."""
        return len(self.placement.shards) > 1

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that hold a shard, each once, ascending."""
        return tuple(sorted({shard.device for shard in self.placement.shards}))

    @property
    def shard_text(self) -> str:
        """The shards in words (see `shards_text`)."""
        return shards_text(self.placement)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantiles:
    """Spread of one number over the devices."""

    name: str
    least: float
    median: float
    p95: float
    most: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """A plan's devices and tables, and the few numbers that people ask for first."""

    plan: Plan
    devices: tuple[DeviceView, ...]
    tables: tuple[PlacedTable, ...]
    collections: tuple[PlacedCollection, ...]
    """Embedding collections of the model. Empty: the tables name none."""

    @property
    def is_simulated(self) -> bool:
        """Whether the predicted times were learnt from a simulator."""
        return self.plan.predicted.source.startswith("simulated:")

    @property
    def simulated_note(self) -> str:
        """The simulator's times that were fitted to measurements, as a clause. Empty: the source is not a simulator."""
        if not self.is_simulated:
            return ""
        compute, exchanges = trust_of(self.plan.bundle)
        return _SIMULATED_NOTES[compute.is_measured, exchanges.is_measured]

    @property
    def slowest(self) -> DeviceView:
        """The device that decides the step time; the first of equals."""
        return self.devices[self.plan.slowest_device]

    @property
    def fullest(self) -> DeviceView:
        """The device with the least memory left; the first of equals."""
        return max(self.devices, key=lambda device: device.memory_share)

    @property
    def split_tables(self) -> tuple[PlacedTable, ...]:
        """Tables with more than one shard, in the order of the request."""
        return tuple(table for table in self.tables if table.is_split)

    @property
    def num_cut_tables(self) -> int:
        """Split tables whose shards are parts."""
        return len(self.split_tables) - self.num_copied_tables

    @property
    def num_copied_tables(self) -> int:
        """Tables that every device, or every device of a group, has a whole copy of."""
        return sum(table.placement.sharding_type is ShardingType.DATA_PARALLEL for table in self.split_tables)

    @property
    def collectives(self) -> tuple[CollectiveCost, ...]:
        """The collectives of a step, with the most bytes of a device. Empty: all-to-alls of tables by columns alone."""
        by_columns = all(table.placement.sharding_type.is_by_columns for table in self.tables)
        if by_columns and self.plan.replication is None:
            return ()
        by_device = zip(*(device.cost.collectives for device in self.devices), strict=True)
        return tuple(max(each, key=lambda collective: collective.num_bytes) for each in by_device)

    @property
    def best_baseline(self) -> BaselineCost | None:
        """The cheapest baseline that found a plan. None: there is none."""
        found = [baseline for baseline in self.plan.baselines if baseline.total_ms is not None]
        return min(found, key=lambda baseline: baseline.total_ms or 0.0, default=None)

    @property
    def gain(self) -> float | None:
        """Share of the best baseline's time that the plan saves; negative if it is slower. None: no baseline."""
        best = self.best_baseline
        return 1 - self.plan.predicted.total_ms / best.total_ms if best and best.total_ms else None

    @property
    def step(self) -> str | None:
        """What a whole step takes, and what decides it. None: the plan is of an earlier release."""
        return step_text(self.plan)

    @property
    def step_gain(self) -> str:
        """The gain in a whole step, as a clause; empty where it is not known."""
        best = self.best_baseline
        gain = None if best is None else step_gain(self.plan, best)
        if best is None or gain is None:
            return ""
        word = "less" if gain >= 0 else "more"
        return f"{format_percent(abs(gain))} {word} of a whole step ({format_ms(best.step_ms or 0.0)} ms)"

    @property
    def compute_imbalance(self) -> float:
        """Largest compute time over the mean; 1 is perfect balance."""
        times = [device.cost.compute_ms for device in self.devices]
        mean = sum(times) / len(times)
        return max(times) / mean if mean else 1.0

    @property
    def bound(self) -> str:
        """Return one sentence: which device decides the step time, and what it spends it on."""
        slowest, cost = self.slowest, self.slowest.cost
        total = cost.total_ms
        if not total:
            return "No device has any predicted cost."
        parts = sorted(
            (
                ("compute", slowest.cost.compute_ms),
                ("collectives", slowest.cost.communication_ms),
                ("wait", slowest.cost.wait_ms),
                ("dense updates", slowest.cost.dense_update_ms),
                ("host memory", slowest.cost.host_link_ms),
                ("expansion of repeats", slowest.cost.expansion_ms or 0.0),
                ("wait for servers", slowest.cost.server_exposed_ms),
            ),
            key=lambda part: -part[1],
        )
        shares = ", ".join(f"{format_percent(ms / total)} {name}" for name, ms in parts if ms / total >= LEAST_SHARE)
        return f"Device {slowest.index} decides the step: {format_ms(total)} ms, of which {shares}."

    @property
    def on_host(self) -> str:
        """Return the tables in host memory, and their share of the fullest node; empty where none is."""
        held = [placed.table.name for placed in self.tables if placed.placement.compute_kernel.is_on_host]
        host = self.plan.request.topology.host_memory
        if not held or host is None:
            return ""
        by_node = [0] * self.plan.request.topology.num_nodes
        for device in self.devices:
            by_node[device.node] += device.memory.host_bytes
        fullest = max(range(len(by_node)), key=by_node.__getitem__)
        names = ", ".join(held[:MOST_NAMED]) + (f" and {len(held) - MOST_NAMED} more" if len(held) > MOST_NAMED else "")
        used = f"{format_bytes(by_node[fullest])} of {format_bytes(host.bytes_per_node)}"
        return f"{names} in host memory; node {fullest} is the fullest: {used}"

    @property
    def on_servers(self) -> str:
        """Return the tables on embedding servers, their fullest process, and their price, or why none are used.

        Empty: there are no servers.
        """
        pool, served = self.plan.request.servers, self.plan.servers
        if pool is None:
            return ""
        if served is None:
            return f"no embedding server is used, {unused_servers(self.plan)}"
        size = f"{pool.count} x {format_bytes(pool.memory_bytes)}" + (
            f" with {pool.processes} processes each" if pool.processes > 1 else ""
        )
        names = ", ".join(table.name for table in served.tables[:MOST_NAMED])
        more = f" and {len(served.tables) - MOST_NAMED} more" if len(served.tables) > MOST_NAMED else ""
        parts = [f"{names}{more} on embedding servers, {size}"]
        if served.memory is not None:
            number, fullest = max(enumerate(served.memory), key=lambda each: each[1].used_bytes)
            used = f"{format_bytes(fullest.used_bytes)} of {format_bytes(fullest.capacity_bytes)}"
            parts.append(f"process {number} is the fullest: {used}")
        if served.predicted is not None:
            slowest = self.slowest.cost
            meanwhile = "during the step before" if self.plan.request.looks_ahead else "next to the devices' own work"
            hidden = f"{format_ms(slowest.server_hidden_ms or 0.0)} ms of it {meanwhile}"
            source = served.predicted.source
            label = "" if source == self.plan.predicted.source else f" ({source})"
            parts.append(f"lookups and exchange {format_ms(served.predicted.total_ms)} ms{label}, {hidden}")
        return "; ".join(parts)

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """The processes of embedding servers; empty: there are none, or they have no price."""
        pool, served, asked = self.plan.request.servers, self.plan.servers, self.plan.request
        if pool is None or served is None or served.predicted is None or served.memory is None:
            return ()
        tables = {table.name: table for table in asked.tables.tables}
        lookups, held = [0.0] * pool.num_processes, [0] * pool.num_processes
        for placed in served.tables:
            for shard in placed.shards:
                lookups[shard.device] += tables[placed.name].pooling_factor
                held[shard.device] += 1
        return tuple(
            ServerView(
                server=process // pool.processes,
                process=process % pool.processes,
                num_shards=held[process],
                lookups_per_sample=lookups[process],
                exchanged_bytes=sum(each.num_bytes for each in cost.collectives)
                + sum(each.num_bytes for each in cost.collectives if each.backward_ms),
                cost=cost,
                memory=memory,
            )
            for process, (cost, memory) in enumerate(zip(served.predicted.devices, served.memory, strict=True))
        )

    @property
    def groups(self) -> str:
        """Return the number of groups that hold all tables, and the time of their averages; empty: there are none."""
        replication = self.plan.replication
        if replication is None:
            return ""
        average_ms = sum(each.backward_ms for each in self.collectives if each.kind is CollectiveKind.SYNC)
        every = replication.sync_every_steps
        often = "after each step" if every == 1 else f"every {every} steps"
        whole_ms, size = replication.whole_ms, len(self.plan.groups[0])
        without = "" if whole_ms is None else f"; without groups the step takes {format_ms(whole_ms)} ms"
        averages = f"averaged {often}: {format_ms(average_ms)} ms of a step"
        return f"{replication.num_groups} {replication.layout} groups of {size} devices, {averages}{without}"

    @property
    def dense_part(self) -> str:
        """Return the layout of the counted dense part, its saving, and its cost; empty where it is not counted."""
        profile, layout = self.plan.request.dense, self.plan.dense
        if profile is None:
            return ""
        size = f"{format_count(profile.num_parameters)} parameters, {format_bytes(profile.total_bytes)} replicated"
        if layout is None:
            return size
        kept = {
            f"{each.strategy} over {'each node' if each.group is DenseGroup.NODE else 'all devices'}"
            for each in layout.units
            if each.group is not None
        }
        num_shared = sum(each.group is not None for each in layout.units)
        num_again = sum(each.checkpointed for each in layout.units)
        num_split = sum(each.split for each in layout.units)
        parts = [
            *([f"{num_shared} of {len(layout.units)} units {' and '.join(sorted(kept))}"] if num_shared else []),
            *([f"{num_split} operator by operator"] if num_split else []),
            *([f"{num_again} checkpointed"] if num_again else []),
        ]
        price = f"{layout.added_ms:+.2f} ms of a step (simulated, overlap assumed)"
        return f"{size}; {format_bytes(layout.memory.total_bytes)} with {', '.join(parts)}: {price}"

    def extremes(self, count: int) -> tuple[DeviceView, ...]:
        """Return the ``count`` slowest and the ``count`` fastest devices, slowest first; all if they are so few."""
        peak = self.plan.request.compute_peak
        ordered = tuple(sorted(self.devices, key=lambda device: (-device.cost.decisive_ms(peak), device.index)))
        return ordered if len(ordered) <= 2 * count else ordered[:count] + ordered[-count:]

    def cost_quantiles(self) -> tuple[Quantiles, ...]:
        """Return the spread of each cost term and of the total over the devices, in milliseconds.

        Dense updates and host memory are left out where there are none.
        """
        terms = [
            (name, [getattr(device.cost, field) for device in self.devices]) for field, name in cost_terms(self.plan)
        ]
        shown = [(name, times) for name, times in terms if any(times) or name not in {_DENSE_UPDATE, _HOST_MEMORY}]
        return tuple(
            _quantiles(name, times) for name, times in [*shown, ("total", [d.cost.total_ms for d in self.devices])]
        )

    def memory_quantiles(self) -> Quantiles:
        """Return the spread of the ledger's sum over the devices, in bytes."""
        return _quantiles("memory", [device.memory_bytes for device in self.devices])


def summarize(plan: Plan) -> PlanSummary:
    """Gather a plan's devices and tables. The plan must match its own request (see ``checks``)."""
    resolved = plan.resolved
    topology = resolved.topology
    num_shards = [0] * topology.num_devices
    for placement in plan.tables:
        for shard in placement.shards:
            num_shards[shard.device] += 1
    devices = tuple(
        DeviceView(index=index, node=index // topology.devices_per_node, cost=cost, memory=memory, num_shards=count)
        for index, (cost, memory, count) in enumerate(zip(plan.predicted.devices, plan.memory, num_shards, strict=True))
    )
    tables = tuple(
        PlacedTable(table=table, placement=placement)
        for table, placement in zip(resolved.tables.tables, plan.tables, strict=True)
    )
    return PlanSummary(plan=plan, devices=devices, tables=tables, collections=tuple(placed_collections(plan)))


def shards_text(placement: TablePlacement) -> str:
    """Return the shards of a table in words: ``0 (64), 1 (32)`` is 64 columns on device 0 and 32 on device 1.

    Many shards of one width are drawn together: ``48-63 (8 each)``. Of tables that are not cut by columns the sharding
    type comes first, and of copied ones the devices alone.
    """
    kind, shards = placement.sharding_type, placement.shards
    devices = sorted({shard.device for shard in shards})
    if kind is ShardingType.DATA_PARALLEL:
        return f"{kind.value} {index_ranges(devices)}"
    widths = {shard.num_columns for shard in shards}
    if len(widths) == 1 and len(devices) == len(shards) > FEW_SHARDS:
        pieces = f"{index_ranges(devices)} ({shards[0].num_columns} each)"
    else:
        pieces = ", ".join(f"{shard.device} ({shard.num_columns})" for shard in shards)
    return pieces if kind.is_by_columns else f"{kind.value} {pieces}"


def index_ranges(indices: Sequence[int]) -> str:
    """Return ascending indices with runs drawn together: ``0-3, 7``."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _quantiles(name: str, values: Sequence[float]) -> Quantiles:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Quantiles(
        name=name,
        least=ordered[0],
        median=ordered[round(last * 0.5)],
        p95=ordered[round(last * 0.95)],
        most=ordered[last],
    )


def unused_servers(plan: GivenPlan) -> str:
    """Return the reason that a plan puts no table on the embedding servers that it may use, as a clause."""
    pool = plan.request.servers
    assert pool is not None, "the caller looked"
    if plan.algorithm is not Algorithm.NEUROSHARD:
        return f"since {plan.algorithm} puts only tables there that are named (servers.tables)"
    if pool.policy is ServerPolicy.IF_NEEDED:
        return "since all tables fit without them (policy if_needed)"
    return "since no tables there lower the predicted time (policy auto)"

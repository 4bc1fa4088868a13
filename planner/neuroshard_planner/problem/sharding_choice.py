"""Ways in which each unit may be sharded: what constraints, devices, kernels, and TorchRec leave. Chooses none."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType, kernels_of, trivial_case
from neuroshard_api.sharding.placement_rules import (
    BY_ROWS,
    collections_of,
    cuts_means,
    kernel_obstacle,
    sharding_problem,
)
from neuroshard_costs.deduplication import is_grouped
from neuroshard_costs.host_tables import KERNELS
from neuroshard_costs.shards import IndexArray

from neuroshard_planner.errors import RequestError
from neuroshard_planner.problem.units import BoolArray, Unit

BY_COLUMNS = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
MOST_MIXED = 500_000  # units times devices; a placement of more blocks of rows takes more memory than a search has


def default_types(request: PlanRequest, manifest: BundleManifest) -> tuple[ShardingType, ...]:
    """Return the types that are searched where a request names none: those whose collectives the cost models know."""
    excluded = request.constraints.excluded_sharding_types or ()
    known = (kind for kind in ShardingType if Family.of(kind) in manifest.families and kind not in excluded)
    return tuple(kind for kind in known if trivial_case(kind, request.topology) is kind)


def sharding_types(
    request: PlanRequest, units: Sequence[Unit], allowed: BoolArray | None, default: tuple[ShardingType, ...]
) -> tuple[frozenset[ShardingType], ...]:
    """Return the sharding types that each unit may have.

    Args:
        request: whose constraints may name types and kernels.
        units: of the request.
        allowed: [units, devices] where each unit may be. None: everywhere.
        default: types of tables whose constraints name none.

    Raises:
        RequestError: nothing is left for a table.
    """
    everywhere = np.ones(request.topology.num_devices, dtype=np.bool_)
    with_means = _collections_with_means(request, default)
    found = []
    for row, unit in enumerate(units):
        devices = everywhere if allowed is None else allowed[row]
        choices = (_TableChoice(request, index, unit, devices, with_means, default) for index in unit.tables)
        found.append(frozenset.intersection(*(each.types() for each in choices)))
    return tuple(_with_one_node_type(request, units, found))


def _collections_with_means(request: PlanRequest, default: tuple[ShardingType, ...]) -> frozenset[object]:
    """Return the keys of the collections whose tables of mean pooling are not cut by rows.

    Those of means alone in which the constraints let every table be by rows alone are not among them.
    """
    tables, types_of = request.tables.tables, request.placed_types_of
    found = set()
    for positions in collections_of(tables):
        means = [tables[index].is_mean for index in positions]
        types = [{*(types_of(tables[index].name) or default)} for index in positions]
        if any(means) and not (all(means) and all(each <= {*BY_ROWS} for each in types)):
            found.add(tables[positions[0]].collection_key)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class HostChoice:
    """Whether a unit may be, or must be, in host memory."""

    kernels: tuple[int, ...]
    """Positions in KERNELS of those that it may have there. Empty: it may not be there."""
    is_bound: bool
    """Whether it may be nowhere else."""


def host_choices(request: PlanRequest, units: Sequence[Unit]) -> tuple[HostChoice, ...]:
    """Return the permitted uses of host memory, for each unit.

    Raises:
        RequestError: they name a kernel that the devices have no host memory for, or a co-located table may be nowhere
            else.
    """
    return tuple(_host_choice(request, unit) for unit in units)


def _host_choice(request: PlanRequest, unit: Unit) -> HostChoice:
    chosen = []
    for index in unit.tables:
        name = request.tables.tables[index].name
        kernels = request.constraints.compute_kernels_of(name) or ()
        on_host = [kernel for kernel in KERNELS if kernel in kernels and kernel.is_on_host]
        for kernel in on_host:
            obstacle = kernel_obstacle(kernel, ShardingType.TABLE_WISE, request.topology)
            if obstacle is not None:
                raise RequestError(
                    f"constraints.compute_kernels: {name!r} may run with {kernel}, {obstacle}; "
                    "hint: give topology.host_memory, or leave the kernel out"
                )
        is_bound = bool(on_host) and ComputeKernel.FUSED not in kernels
        if is_bound and unit.is_group:
            raise RequestError(
                f"constraints.compute_kernels: {name!r} may run with {' or '.join(on_host)} alone, and co-located "
                "tables are in device memory; hint: add fused, or take it out of its group"
            )
        chosen.append(HostChoice(tuple(KERNELS.index(kernel) for kernel in on_host), is_bound))
    return HostChoice((), is_bound=False) if unit.is_group else chosen[0]


def is_too_large(request: PlanRequest, num_units: int) -> bool:
    """Return whether a set is searched by columns alone."""
    return num_units * request.topology.num_devices > MOST_MIXED


def _with_one_node_type(
    request: PlanRequest, units: Sequence[Unit], found: Sequence[frozenset[ShardingType]]
) -> Iterator[frozenset[ShardingType]]:
    """Yield the types without grid_shard where some table may be table_row_wise alone: a plan has only one of them."""
    by_node = {ShardingType.TABLE_ROW_WISE, ShardingType.GRID}
    whole_blocks = next(
        (row for row, types in enumerate(found) if types & by_node == {ShardingType.TABLE_ROW_WISE}), None
    )
    for row, types in enumerate(found):
        left = types if whole_blocks is None else types - {ShardingType.GRID}
        if not left:
            tables = request.tables.tables
            first, second = (tables[units[each].tables[0]].name for each in (whole_blocks or 0, row))
            raise RequestError(
                f"constraints: {first!r} may be table_row_wise and not grid_shard, {second!r} grid_shard alone, and "
                "TorchRec makes one lookup of both; hint: allow grid_shard for both"
            )
        yield left


def whole_nodes(request: PlanRequest, allowed: BoolArray) -> IndexArray:
    """Return the nodes of which every device is allowed ([devices])."""
    nodes: IndexArray = np.flatnonzero(allowed.reshape(request.topology.num_domains, -1).all(axis=1))
    return nodes


@dataclass(frozen=True, slots=True)
class _TableChoice:
    """One table of a unit, and the devices that it may be on."""

    request: PlanRequest
    index: int
    unit: Unit
    allowed: BoolArray
    with_means: frozenset[object]
    """Collections whose tables of mean pooling are not cut by rows."""
    default: tuple[ShardingType, ...]

    def types(self) -> frozenset[ShardingType]:
        """Return the sharding types without an obstacle. Raises RequestError where none is left."""
        name = self.request.tables.tables[self.index].name
        asked = self.request.placed_types_of(name) or self.default
        obstacles = {kind: next(self._obstacles(kind, asked), None) for kind in asked}
        free = frozenset(kind for kind, obstacle in obstacles.items() if obstacle is None)
        if free:
            return free
        parts = {kind: (obstacle or "").partition("; hint: ") for kind, obstacle in obstacles.items()}
        listed = "; ".join(f"{kind} {problem}" for kind, (problem, _, _) in parts.items())
        remedies = dict.fromkeys(remedy or "loosen what excludes the others" for _, _, remedy in parts.values())
        raise RequestError(
            f"constraints: no sharding type is left for table {name!r}: {listed}; hint: add table_wise with the kernel "
            f"fused, or {', or '.join(remedies)}"
        )

    def _obstacles(self, kind: ShardingType, asked: Sequence[ShardingType]) -> Iterator[str]:
        """Yield obstacles to this sharding of the table; each completes a sentence that begins with the type."""
        request = self.request
        table = request.tables.tables[self.index]
        kernels = request.constraints.compute_kernels_of(table.name)
        if kernels is not None and not {*self._kernels(kind)} & {*kernels}:
            yield f"needs the kernel {ComputeKernel.of(kind)}, allowed are {', '.join(kernels)}"
        is_grid_alone = kind is ShardingType.GRID and ShardingType.TABLE_ROW_WISE not in asked
        if not kind.is_by_columns:
            yield from self._further_obstacles(kind)
        if is_grid_alone and len(whole_nodes(request, self.allowed)) == 1:
            yield "needs two whole nodes, or table_row_wise next to it"

    def _kernels(self, kind: ShardingType) -> Iterator[ComputeKernel]:
        """Yield the kernels of a type, and of those that constraints name and that come to it on these devices."""
        yield from kernels_of(kind)
        named = self.request.constraints.sharding_types_of(self.request.tables.tables[self.index].name) or ()
        for each in named:
            if trivial_case(each, self.request.topology) is kind:
                yield from kernels_of(each)

    def _further_obstacles(self, kind: ShardingType) -> Iterator[str]:
        """Yield further obstacles to cuts by rows or copies of the table."""
        request = self.request
        table = request.tables.tables[self.index]
        if self.unit.is_group:
            yield "would cut or copy a co-located table, which stays whole on one device"
        if table.collection_key in self.with_means and cuts_means(kind, table):
            yield (
                "cuts bags that are averaged, which TorchRec computes rightly only where all tables of the collection "
                "have mean pooling and may be row_wise or table_row_wise alone"
            )
        if is_grouped(table, request) and kind is not ShardingType.DATA_PARALLEL:
            yield "adds up parts of equally many lists on every device, which a group's own collection has not"
        if kind.is_by_node and not len(whole_nodes(request, self.allowed)):
            yield "needs all devices of a node, which devices or forbidden_devices exclude"
        if not kind.is_by_node and not self.allowed.all():
            yield "needs all devices, some of which devices or forbidden_devices exclude"
        problem = sharding_problem(kind, table, request)
        if problem is not None:
            yield f"cannot be run: {problem}"

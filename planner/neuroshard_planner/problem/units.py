"""Constraints of a request, resolved to placement units and checked once. Decides nothing itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from neuroshard_api.documents.request import Constraints, PlanRequest, TableConstraints
from neuroshard_api.documents.tables import DIM_MULTIPLE, MAX_WIDTH
from neuroshard_api.sharding.kinds import ShardingType
from numpy.typing import NDArray

from neuroshard_planner.errors import RequestError

BoolArray = NDArray[np.bool_]

_FREE = TableConstraints.model_construct()


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """A unit of placement: a table that may be split, or a co-located group of whole tables."""

    tables: tuple[int, ...]
    """Positions in the request's table set."""
    num_rows: int
    """Rows of all its tables together."""
    num_columns: int
    """Columns of all its tables together."""
    min_shard_width: int
    max_shards: int
    """1 for a group."""
    max_blocks: int = 1
    """Most blocks of columns where each is cut by the rows of a node."""
    max_shard_width: int = MAX_WIDTH
    """Most columns of a shard, where a table may be cut."""
    is_group: bool = False
    """Whether its tables are co-located, also where the group has one."""

    @property
    def must_be_cut(self) -> bool:
        """Whether the unit may be cut and is wider than a shard may be."""
        return self.max_shards > 1 and self.num_columns > self.max_shard_width


def even_widths(num_columns: int, count: int) -> tuple[int, ...]:
    """Return ``count`` widths that are multiples of 4, differ by at most 4 and add up; 128 in 3 is (44, 44, 40)."""
    quads, rest = divmod(num_columns // DIM_MULTIPLE, count)
    return (DIM_MULTIPLE * (quads + 1),) * rest + (DIM_MULTIPLE * quads,) * (count - rest)


def resolve_units(request: PlanRequest) -> tuple[Unit, ...]:
    """Return the units in the order of their first tables.

    Raises:
        RequestError: a constraint names a table twice, or one that is not in the set.
    """
    tables = request.tables.tables
    constraints = request.constraints
    position = {table.name: index for index, table in enumerate(tables)}
    _check_table_names(request, position)
    groups = _groups(request, position)
    grouped = {index: group for group in groups for index in group}
    units = []
    for index, table in enumerate(tables):
        group = grouped.get(index)
        if group is not None:
            if index == group[0]:
                rows = sum(tables[member].num_embeddings for member in group)
                columns = sum(tables[member].embedding_dim for member in group)
                units.append(
                    Unit(
                        tables=group,
                        num_rows=rows,
                        num_columns=columns,
                        min_shard_width=columns,
                        max_shards=1,
                        is_group=True,
                    )
                )
            continue
        own = constraints.tables.get(table.name, _FREE)
        width = own.min_shard_width or constraints.min_shard_width
        most = most_shards(constraints, table.name)
        by_width = table.embedding_dim // width
        types = request.placed_types_of(table.name)
        most_pieces = max(1, by_width if most is None else min(most, by_width))
        # A kernel of sequences takes one width, that of the whole tables of a collection (see placement_rules).
        may_be_cut = not table.is_sequence and (types is None or ShardingType.COLUMN_WISE in types)
        units.append(
            Unit(
                tables=(index,),
                num_rows=table.num_embeddings,
                num_columns=table.embedding_dim,
                min_shard_width=min(width, table.embedding_dim),
                max_shards=most_pieces if may_be_cut else 1,
                max_blocks=most_pieces,
                max_shard_width=request.widest_shard(table) or MAX_WIDTH,
            )
        )
    return tuple(units)


def most_shards(constraints: Constraints, name: str) -> int | None:
    """Return the maximum number of a table's shards: its own, or else that of all tables. None: any number."""
    return constraints.tables.get(name, _FREE).max_shards or constraints.max_shards_per_table


def placed_units(units: Sequence[Unit], allowed: BoolArray | None, num_devices: int) -> tuple[Unit, ...]:
    """Return the units as they may be placed: one that has a single device is whole, unless it must be cut.

    Args:
        units: of the request.
        allowed: [units, devices]. None: every unit may be on every device.
        num_devices: of the request.
    """
    counts = [num_devices] * len(units) if allowed is None else allowed.sum(axis=1).tolist()
    return tuple(
        replace(unit, max_shards=1) if count == 1 and not unit.must_be_cut else unit
        for unit, count in zip(units, counts, strict=True)
    )


def num_usable_devices(allowed: BoolArray | None, num_devices: int) -> int:
    """Return the number of devices that may hold any unit; for the arguments see `placed_units`."""
    return num_devices if allowed is None else int(allowed.any(axis=0).sum())


def allowed_devices(request: PlanRequest, units: Sequence[Unit]) -> BoolArray | None:
    """Return [units, devices], or None where every unit may be on every device.

    Raises:
        RequestError: a device does not exist, or nothing is left for a unit.
    """
    constraints = request.constraints
    num_devices = request.topology.num_devices
    _check_devices("constraints.forbidden_devices", constraints.forbidden_devices, num_devices)
    pinned = {name: own.devices for name, own in constraints.tables.items() if own.devices is not None}
    for name, devices in pinned.items():
        _check_devices(f"constraints.tables.{name}.devices", devices, num_devices)
    if not constraints.forbidden_devices and not pinned:
        return None
    allowed = np.ones((len(units), num_devices), dtype=np.bool_)
    allowed[:, list(constraints.forbidden_devices)] = False
    tables = request.tables.tables
    for row, unit in enumerate(units):
        for index in unit.tables:
            own = pinned.get(tables[index].name)
            if own is not None:
                allowed[row] &= np.isin(np.arange(num_devices), own)
        if not allowed[row].any():
            names = ", ".join(repr(tables[index].name) for index in unit.tables[:3])
            raise RequestError(
                f"constraints: no device is left for {names}: its devices and forbidden_devices exclude each other; "
                "hint: allow at least one device"
            )
    return allowed


def _check_table_names(request: PlanRequest, position: Mapping[str, int]) -> None:
    constraints = request.constraints
    named = [(f"constraints.tables.{name}", name) for name in constraints.tables]
    named += [
        (f"constraints.colocate[{row}]", name) for row, group in enumerate(constraints.colocate) for name in group
    ]
    for path, name in named:
        if name not in position:
            raise RequestError(
                f"{path}: there is no table {name!r} in the set {request.tables.name!r}; hint: check the name"
            )


def _groups(request: PlanRequest, position: Mapping[str, int]) -> list[tuple[int, ...]]:
    members: dict[str, list[int]] = {}
    for index, table in enumerate(request.tables.tables):
        if table.colocation_group is not None:
            members.setdefault(f"tables[].colocation_group {table.colocation_group!r}", []).append(index)
    for row, names in enumerate(request.constraints.colocate):
        members[f"constraints.colocate[{row}]"] = [position[name] for name in names]
    owner: dict[int, str] = {}
    for path, group in members.items():
        for index in group:
            if index in owner:
                name = request.tables.tables[index].name
                raise RequestError(f"{path}: table {name!r} is already in {owner[index]}; a table has one group")
            owner[index] = path
    return [tuple(sorted(group)) for group in members.values()]


def _check_devices(path: str, devices: Sequence[int], num_devices: int) -> None:
    for device in devices:
        if device >= num_devices:
            raise RequestError(
                f"{path}: device {device} does not exist; the topology has devices 0 to {num_devices - 1}"
            )

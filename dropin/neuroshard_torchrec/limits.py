"""TorchRec's ParameterConstraints and sharders as constraints of a plan; a sentence for what has no counterpart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fbgemm_gpu
from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.documents.request import Constraints, TableConstraints
from neuroshard_api.documents.tables import DataType
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kernels import TRAINING_KERNELS, WIDE_SUMS_SINCE, release_of
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType, kernels_of
from torchrec.distributed.planner.types import ParameterConstraints, PlannerErrorType

from neuroshard_torchrec.arguments import COPIED, require_known_fields
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import Limits, ModelTables

BY_DEFAULT = tuple(kind for kind in ShardingType if kind is not ShardingType.DATA_PARALLEL)
"""Sharding types searched where constraints name none; data_parallel tables the script itself has to update."""

TABLE_COLUMN_WISE = "table_column_wise"
"""TorchRec's name of blocks of columns on the devices of one node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Translated:
    """Constraints of a plan."""

    constraints: Constraints
    asks_for_host_memory: bool
    """Whether a table may be in host memory."""
    carried: Mapping[str, Mapping[str, Any]]
    """What constraints say of each table's kernel, by the table's name: fields of TorchRec's ParameterSharding."""
    output_type: DataType | None
    """Of the embeddings, where constraints name the same for all tables. None: FP32, or they differ."""
    warnings: tuple[str, ...]
    """What was asked for and is not kept."""


def translated(
    tables: ModelTables,
    limits: Limits | None,
    *,
    topology: Topology | None = None,
    max_memory_bytes: int | None,
    compute_device: str,
    has_host_memory: bool = False,
    families: frozenset[Family] = frozenset(Family),
) -> Translated:
    """Return the constraints of all tables.

    Args:
        tables: of the module.
        limits: TorchRec's, by the table's name in its collection.
        topology: that is planned for; tables of one node are dealt out to its nodes. None: not known, as one node.
        max_memory_bytes: of each device. None: all it has.
        compute_device: in torch's words; a sharder's types may depend on it.
        has_host_memory: whether nodes have memory for tables. Without it, a table that may also be in device memory
            is placed there.
        families: whose collectives the cost models know.

    Raises:
        DropInError: a table may be sharded in no way that the search knows, or a constraint asks for what is not kept.
    """
    names = {name for _, name in tables.places.values()}
    given = {name: limit for name, limit in (limits or {}).items() if name in names}
    require_known_fields(given)
    given = {  # an empty list limits nothing, as TorchRec has it
        name: replace(limit, sharding_types=limit.sharding_types or None, compute_kernels=limit.compute_kernels or None)
        for name, limit in given.items()
    }
    sharders = {each.path: each.sharder for each in tables.collections}
    offers = {each: tuple(sharders[path].sharding_types(compute_device)) for each, (path, _) in tables.places.items()}
    of_node = _nodes_of(
        tables,
        {
            known_as: (given[name].sharding_types if name in given else None) or offers[known_as]
            for known_as, (_, name) in tables.places.items()
        },
        topology,
    )
    widths = {table.name: table.embedding_dim for table in tables.table_set.tables}
    own: dict[str, TableConstraints] = {}
    carried: dict[str, Mapping[str, Any]] = {}
    for known_as, (_, name) in tables.places.items():
        limit = given.get(name, ParameterConstraints())
        offered = offers[known_as]
        if known_as in of_node:
            limit = replace(limit, sharding_types=[ShardingType.COLUMN_WISE.value])
            offered = (*offered, ShardingType.COLUMN_WISE.value)
        types = _types(known_as, limit, offered, families)
        is_free = (
            limit.sharding_types is None and {*BY_DEFAULT} <= {*offered} and types != (ShardingType.DATA_PARALLEL,)
        )
        own[known_as] = _table_constraints(
            name, types, limit, columns=widths[known_as], devices=of_node.get(known_as), has_host_memory=has_host_memory
        )
        carried[known_as] = {field: value for field in COPIED if (value := getattr(limit, field)) is not None}
        if known_as in of_node:
            carried[known_as] = {**carried[known_as], "sharding_type": TABLE_COLUMN_WISE}
        if is_free:
            own[known_as] = own[known_as].model_copy(update={"sharding_types": None})
    return Translated(
        constraints=Constraints(
            max_memory_bytes_per_device=max_memory_bytes,
            max_shard_width=_known_width(compute_device),
            excluded_sharding_types=(ShardingType.DATA_PARALLEL,),
            tables={name: each for name, each in own.items() if each != TableConstraints()},
        ),
        asks_for_host_memory=any(each.compute_kernels is not None for each in own.values()),
        carried={name: each for name, each in carried.items() if each},
        output_type=_output_type(carried),
        warnings=tuple(_warnings(tables, limits or {}, carried)),
    )


def _known_width(compute_device: str) -> int | None:
    """Return the widest shard that the installed FBGEMM computes rightly, if that is more than every release does."""
    release = release_of(fbgemm_gpu.__version__)
    if compute_device != "cuda" or release is None or release < WIDE_SUMS_SINCE:
        return None
    return TRAINING_KERNELS["cuda"].max_width


def _nodes_of(
    tables: ModelTables, asked: Mapping[str, Sequence[str]], topology: Topology | None
) -> Mapping[str, tuple[int, ...]]:
    """Return the devices of the node of each table that may be table_column_wise alone: the largest tables first."""
    alone = [name for name, types in asked.items() if tuple(types) == (TABLE_COLUMN_WISE,)]
    nodes, per_node = (1, 0) if topology is None else (topology.num_nodes, topology.devices_per_node)
    cells = {table.name: table.num_embeddings * table.embedding_dim for table in tables.table_set.tables}
    held = [0] * nodes
    found = {}
    for known_as in sorted(alone, key=lambda each: -cells[each]):
        node = held.index(min(held))
        held[node] += cells[known_as]
        found[known_as] = tuple(range(node * per_node, (node + 1) * per_node)) if nodes > 1 else ()
    return found


def _table_constraints(
    name: str,
    types: tuple[ShardingType, ...],
    limit: ParameterConstraints,
    *,
    columns: int,
    devices: tuple[int, ...] | None,
    has_host_memory: bool,
) -> TableConstraints:
    """Return the constraints of one table. Raises DropInError."""
    kernels = tuple(each for each in ComputeKernel if each in (limit.compute_kernels or ()))
    asks_for_host = any(each.is_on_host for each in kernels) and (has_host_memory or ComputeKernel.FUSED not in kernels)
    is_cut = ShardingType.COLUMN_WISE in types
    raw = {
        "devices": devices or None,
        "sharding_types": types,
        "max_shards": None if is_cut or ShardingType.GRID in types else 1,
        "min_shard_width": None if limit.min_partition is None else _least_width(limit.min_partition, columns),
        "compute_kernels": kernels if asks_for_host else None,
    }
    try:
        return validated(TableConstraints, raw, where=f"constraints[{name!r}].min_partition")
    except DocumentError as error:
        raise DropInError(str(error)) from error


def _least_width(asked: int, columns: int) -> int:
    """Return the least width of even column shards that is not below the asked one, as TorchRec cuts."""
    if asked < 1:
        return asked  # which the document refuses by name
    return next((width for width in range(asked, columns) if columns % width == 0 and width % 4 == 0), columns)


def _types(
    known_as: str, limit: ParameterConstraints, of_sharder: tuple[str, ...], families: frozenset[Family]
) -> tuple[ShardingType, ...]:
    """Return the types that a table may have. Raises DropInError where none is left."""
    asked, kernels = limit.sharding_types, limit.compute_kernels
    known = tuple(each for each in ShardingType if each in of_sharder)
    allowed = known if asked is None else tuple(each for each in known if each in asked)
    if not allowed:
        found = asked if asked is not None and known else of_sharder
        listed = ", ".join(map(str, found)) or "what its sharder offers for this device, which is nothing"
        raise DropInError(
            f"table {known_as!r} may only be {listed}; this planner places tables "
            f"{', '.join(known or ShardingType)}; hint: allow one of them, or plan the module with TorchRec's planner",
            PlannerErrorType.STRICT_CONSTRAINTS,
        )
    run = tuple(each for each in allowed if kernels is None or any(kernel in kernels for kernel in kernels_of(each)))
    if not run:
        raise DropInError(
            f"table {known_as!r} may only use the kernels {', '.join(kernels or ())}, which run no "
            f"{' or '.join(allowed)} table; this planner places fused ones, also in host memory, and dense ones of "
            "data_parallel tables; hint: allow `fused`, or plan the module with TorchRec's planner",
            PlannerErrorType.STRICT_CONSTRAINTS,
        )
    if asked is not None:
        return run
    unasked = tuple(each for each in run if each in BY_DEFAULT)
    return tuple(each for each in unasked if Family.of(each) in families) or unasked or run


def _output_type(carried: Mapping[str, Mapping[str, Any]]) -> DataType | None:
    """Return the type of all tables' embeddings. None: it is FP32, or tables differ."""
    found = {each.get("output_dtype") for each in carried.values()}
    only = found.pop() if len(found) == 1 else None
    return None if only is None or only.name not in DataType.__members__ else DataType[only.name]


def _warnings(tables: ModelTables, given: Limits, carried: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = []
    names = {name for _, name in tables.places.values()}
    unknown = [name for name in given if name not in names]
    if unknown:
        more = f", and {len(unknown) - 1} more," if len(unknown) > 1 else ""
        found.append(f"constraints: {unknown[0]!r}{more} is not a table of the planned module; passed over")
    if len({each.get("output_dtype") for each in carried.values()}) > 1:
        found.append("constraints: output_dtype differs between tables; embeddings are priced as FP32")
    cached = [name for name, each in carried.items() if getattr(each.get("cache_params"), "load_factor", None)]
    if cached:
        found.append(
            f"constraints: cache_params.load_factor of {cached[0]!r} is kept; its cache's memory is priced as planned"
        )
    return found

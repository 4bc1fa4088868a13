"""TorchRec's ParameterConstraints and sharders as constraints of a plan; a sentence for what has no counterpart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import fbgemm_gpu
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.request import Constraints, TableConstraints
from neuroshard_api.documents.tables import DataType
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kernels import TRAINING_KERNELS, WIDE_SUMS_SINCE, release_of
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType, kernels_of
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, PlannerErrorType
from torchrec.distributed.types import ModuleSharder

from neuroshard_torchrec.arguments import COPIED, require_known_fields, whole_number
from neuroshard_torchrec.asked import Asked
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import ModelTables

BY_DEFAULT = tuple(kind for kind in ShardingType if kind is not ShardingType.DATA_PARALLEL)
"""Sharding types searched where constraints name none; data_parallel tables the script itself has to update."""

BY_ROWS = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID)
"""Types that tables of feature processors have only where constraints name them, as TorchRec has it."""

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
    asked: Asked,
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
        asked: TorchRec's constraints.
        topology: that is planned for; tables of one node are dealt out to its nodes. None: not known, as one node.
        max_memory_bytes: of each device. None: all it has.
        compute_device: in torch's words; a sharder's types may depend on it.
        has_host_memory: whether nodes have memory for tables. Without it, a table that may also be in device memory
            is placed there.
        families: whose collectives the cost models know.

    Raises:
        DropInError: a table may be sharded in no way that the search knows, or a constraint asks for what is not kept.
    """
    given = {known_as: limit for known_as, place in tables.places.items() if (limit := asked.of(place)) is not None}
    names = {name for _, name in tables.places.values()}
    require_known_fields({name: limit for name, limit in asked.by_name.items() if name in names and limit is not None})
    given = {  # an empty list limits nothing, as TorchRec has it
        known_as: replace(
            limit, sharding_types=_listed(limit.sharding_types), compute_kernels=_listed(limit.compute_kernels)
        )
        for known_as, limit in given.items()
    }
    collections = {each.path: each for each in tables.collections}
    offers = {each: _offer(collections[path].sharder, compute_device) for each, (path, _) in tables.places.items()}
    of_node = _nodes_of(
        tables,
        {
            known_as: (given[known_as].sharding_types if known_as in given else None) or [*offered]
            for known_as, offered in offers.items()
            if TABLE_COLUMN_WISE in offered
        },
        topology,
    )
    all_known = tuple(each for each in BY_DEFAULT if Family.of(each) in families)
    widths = {table.name: table.embedding_dim for table in tables.table_set.tables}
    own: dict[str, TableConstraints] = {}
    carried: dict[str, Mapping[str, Any]] = {}
    for known_as, (path, name) in tables.places.items():
        limit = given.get(known_as, ParameterConstraints())
        offer = offers[known_as]
        if known_as in of_node:
            limit = replace(limit, sharding_types=[ShardingType.COLUMN_WISE.value])
            offer = {**offer, ShardingType.COLUMN_WISE.value: offer[TABLE_COLUMN_WISE]}
        is_processed = collections[path].is_processed
        types = _types(known_as, limit, offer, families, is_processed=is_processed)
        is_free = limit.sharding_types is None and types == all_known
        own[known_as] = _table_constraints(
            name,
            types,
            limit,
            kernels=tuple(each for each in ComputeKernel if any(each in _left(offer, limit)[kind] for kind in types)),
            sharder=collections[path].sharder,
            columns=widths[known_as],
            devices=of_node.get(known_as),
            has_host_memory=has_host_memory,
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
        warnings=tuple(_warnings(tables, asked, carried)),
    )


def _listed(names: Iterable[str | Enum] | None) -> list[str] | None:
    """Return names of types or kernels, of which some are members of TorchRec's enums. None: they limit nothing."""
    given = [names] if isinstance(names, str) else names or ()
    return [str(each.value) if isinstance(each, Enum) else each for each in given] or None


def _known_width(compute_device: str) -> int | None:
    """Return the widest shard that the installed FBGEMM computes rightly, if that is more than every release does."""
    release = release_of(fbgemm_gpu.__version__)
    if compute_device != "cuda" or release is None or release < WIDE_SUMS_SINCE:
        return None
    return TRAINING_KERNELS["cuda"].max_width


def _nodes_of(
    tables: ModelTables, asked: Mapping[str, Sequence[str]], topology: Topology | None
) -> Mapping[str, tuple[int, ...]]:
    """Return the devices of the domain of each table that may be table_column_wise alone: the largest tables first."""
    alone = [
        name for name, types in asked.items() if {*types} - {ShardingType.DATA_PARALLEL.value} == {TABLE_COLUMN_WISE}
    ]
    nodes, per_node = (1, 0) if topology is None else (topology.num_domains, topology.devices_per_domain)
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
    kernels: tuple[ComputeKernel, ...],
    sharder: ModuleSharder[nn.Module],
    columns: int,
    devices: tuple[int, ...] | None,
    has_host_memory: bool,
) -> TableConstraints:
    """Return the constraints of one table. Raises DropInError."""
    permits_host = limit.compute_kernels is not None and has_host_memory
    asks_for_host = any(each.is_on_host for each in kernels) and (permits_host or ComputeKernel.FUSED not in kernels)
    has_cache = asks_for_host and ComputeKernel.FUSED_UVM_CACHING in kernels
    is_cut = ShardingType.COLUMN_WISE in types
    raw = {
        "devices": devices or None,
        "sharding_types": types,
        "max_shards": None if is_cut or ShardingType.GRID in types else 1,
        "min_shard_width": _least_width(name, limit.min_partition, columns) if limit.min_partition else None,
        "compute_kernels": kernels if asks_for_host else None,
        "cache_load_factor": _load_factor(name, limit, sharder) if has_cache else None,
    }
    return validated(TableConstraints, raw, where=f"constraints[{name!r}]")


def _load_factor(name: str, limit: ParameterConstraints, sharder: ModuleSharder[nn.Module]) -> float | None:
    """Return the rows of a table's cache over its own, of constraints, else of the sharder's fused_params.

    Raises:
        DropInError: it is not a share of the rows.
    """
    where = f"constraints[{name!r}].cache_params.load_factor"
    found = None if limit.cache_params is None else limit.cache_params.load_factor
    if found is None:
        where = f"fused_params['cache_load_factor'] of {type(sharder).__name__}"
        found = (getattr(sharder, "fused_params", None) or {}).get("cache_load_factor")
    if found is not None and not 0 < found <= 1:
        raise DropInError(
            f"{where}: must be above 0 and at most 1 (found {found!r}); "
            "hint: give the cached share of the table's rows, or leave it out"
        )
    return found


def _least_width(name: str, given: object, columns: int) -> int:
    """Return the least width of even column shards that is not below the asked one, as TorchRec cuts."""
    asked = whole_number(
        given, where=f"constraints[{name!r}].min_partition", hint="columns of the narrowest shard, or leave it out"
    )
    return next((width for width in range(asked, columns) if columns % width == 0 and width % 4 == 0), columns)


def _offer(sharder: ModuleSharder[nn.Module], compute_device: str) -> Mapping[str, Sequence[str]]:
    """Return the kernels that a sharder has for each of its types."""
    kinds = sharder.sharding_types(compute_device)
    return {kind: sharder.compute_kernels(kind, compute_device) for kind in kinds}


def _left(offered: Mapping[str, Sequence[str]], limit: ParameterConstraints) -> Mapping[str, Sequence[str]]:
    """Return the kernels that constraints leave of those that a sharder has for each type, as TorchRec filters them."""
    asked = limit.compute_kernels or [*ComputeKernel]
    left = {kind: [each for each in kernels if each in asked] for kind, kernels in offered.items()}
    return {
        kind: [each for each in kernels if each != ComputeKernel.DENSE or ComputeKernel.FUSED not in kernels]
        for kind, kernels in left.items()
    }


def _types(
    known_as: str,
    limit: ParameterConstraints,
    offered_kernels: Mapping[str, Sequence[str]],
    families: frozenset[Family],
    *,
    is_processed: bool,
) -> tuple[ShardingType, ...]:
    """Return the types that a table may have. Raises DropInError where none is left."""
    asked = limit.sharding_types
    left = _left(offered_kernels, limit)
    known = tuple(each for each in ShardingType if each in left)
    allowed = known if asked is None else tuple(each for each in known if each in asked)
    if not allowed:
        found = asked if asked is not None and known else [*left]
        listed = ", ".join(map(str, found)) or "what its sharder offers for this device, which is nothing"
        raise DropInError(
            f"table {known_as!r} may only be {listed}; this planner places tables "
            f"{', '.join(known or ShardingType)}; hint: allow one of them, or plan the module with TorchRec's planner",
            PlannerErrorType.STRICT_CONSTRAINTS,
        )
    run = tuple(each for each in allowed if any(kernel in left[each] for kernel in kernels_of(each)))
    if not run:
        of_sharder = dict.fromkeys(each for kind in allowed for each in offered_kernels[kind])
        raise DropInError(
            f"table {known_as!r} has no kernel left: its sharder has {', '.join(of_sharder) or 'none'} for "
            f"{' and '.join(allowed)}, constraints allow {', '.join(limit.compute_kernels or ['all'])}, and this "
            "planner places fused ones, on a GPU also in host memory, and dense ones of data_parallel tables; "
            "hint: allow `fused`, or plan the module with TorchRec's planner",
            PlannerErrorType.STRICT_CONSTRAINTS,
        )
    if asked is not None:
        return run
    unasked = tuple(each for each in run if each in BY_DEFAULT and not (is_processed and each in BY_ROWS))
    return tuple(each for each in unasked if Family.of(each) in families) or unasked or run


def _output_type(carried: Mapping[str, Mapping[str, Any]]) -> DataType | None:
    """Return the type of all tables' embeddings. None: it is FP32, or tables differ."""
    found = {each.get("output_dtype") for each in carried.values()}
    only = found.pop() if len(found) == 1 else None
    return None if only is None or only.name not in DataType.__members__ else DataType[only.name]


def _warnings(tables: ModelTables, asked: Asked, carried: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = []
    left_out = [name for _, name in tables.left_out]
    if left_out:
        more = f" and {len(left_out) - 1} more are" if len(left_out) > 1 else " is"
        found.append(
            f"constraints: table {left_out[0]!r}{more} left out of the plan, as TorchRec's planner does: device_group "
            "names another device, or the enumerator has no option; every rank keeps what is left out whole"
        )
    unknown = asked.others({*left_out, *(name for _, name in tables.places.values())})
    if unknown:
        more = f", and {len(unknown) - 1} more," if len(unknown) > 1 else ""
        found.append(f"constraints: {unknown[0]!r}{more} is not a table of the planned module; passed over")
    if len({each.get("output_dtype") for each in carried.values()}) > 1:
        found.append("constraints: output_dtype differs between tables; embeddings are priced as FP32")
    return found

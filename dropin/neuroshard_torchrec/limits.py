"""TorchRec's ParameterConstraints and sharders as constraints of a plan; a sentence for what has no counterpart."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import fbgemm_gpu
from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.documents.request import Constraints, TableConstraints
from neuroshard_api.sharding.kernels import TRAINING_KERNELS, WIDE_SUMS_SINCE, release_of
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType, kernels_of
from torchrec.distributed.planner.types import ParameterConstraints

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import Limits, ModelTables

BY_DEFAULT = tuple(kind for kind in ShardingType if kind is not ShardingType.DATA_PARALLEL)
"""Sharding types searched where constraints name none; data_parallel tables the script itself has to update."""

_KEPT = frozenset({"sharding_types", "compute_kernels", "min_partition", "pooling_factors"})
"""Fields of ParameterConstraints that a plan follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Translated:
    """Constraints of a plan."""

    constraints: Constraints
    asks_for_host_memory: bool
    """Whether a table may be in host memory."""
    warnings: tuple[str, ...]
    """What was asked for and is not kept."""


def translated(
    tables: ModelTables,
    limits: Limits | None,
    *,
    max_memory_bytes: int | None,
    compute_device: str,
    has_host_memory: bool = False,
    families: frozenset[Family] = frozenset(Family),
) -> Translated:
    """Return the constraints of all tables.

    Args:
        tables: of the module.
        limits: TorchRec's, by the table's name in its collection.
        max_memory_bytes: of each device. None: all it has.
        compute_device: in torch's words; a sharder's types may depend on it.
        has_host_memory: whether nodes have memory for tables. Without it, a table that may also be in device memory
            is placed there.
        families: whose collectives the cost models know.

    Raises:
        DropInError: a table may be sharded in no way that the search knows, or a constraint names no table.
    """
    given = limits or {}
    names = {name for _, name in tables.places.values()}
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        raise DropInError(
            f"constraints: name a table {unknown!r}, which the module has not; it has "
            f"{', '.join(map(repr, sorted(names)[:5]))}"
        )
    sharders = {each.path: each.sharder for each in tables.collections}
    own: dict[str, TableConstraints] = {}
    for known_as, (path, name) in tables.places.items():
        limit = given.get(name, ParameterConstraints())
        offered = tuple(sharders[path].sharding_types(compute_device))
        types = _types(known_as, limit, offered, families)
        is_free = limit.sharding_types is None and {*BY_DEFAULT} <= {*offered}
        own[known_as] = _table_constraints(name, types, limit, has_host_memory=has_host_memory)
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
        warnings=tuple(_warnings(given)),
    )


def _known_width(compute_device: str) -> int | None:
    """Return the widest shard that the installed FBGEMM computes rightly, if that is more than every release does."""
    release = release_of(fbgemm_gpu.__version__)
    if compute_device != "cuda" or release is None or release < WIDE_SUMS_SINCE:
        return None
    return TRAINING_KERNELS["cuda"].max_width


def _table_constraints(
    name: str, types: tuple[ShardingType, ...], limit: ParameterConstraints, *, has_host_memory: bool
) -> TableConstraints:
    """Return the constraints of one table. Raises DropInError."""
    kernels = tuple(each for each in ComputeKernel if each in (limit.compute_kernels or ()))
    asks_for_host = any(each.is_on_host for each in kernels) and (has_host_memory or ComputeKernel.FUSED not in kernels)
    is_cut = ShardingType.COLUMN_WISE in types
    raw = {
        "sharding_types": types,
        "max_shards": None if is_cut or ShardingType.GRID in types else 1,
        "min_shard_width": limit.min_partition,
        "compute_kernels": kernels if asks_for_host else None,
    }
    try:
        return validated(TableConstraints, raw, where=f"constraints[{name!r}].min_partition")
    except DocumentError as error:
        raise DropInError(str(error)) from error


def _types(
    known_as: str, limit: ParameterConstraints, of_sharder: tuple[str, ...], families: frozenset[Family]
) -> tuple[ShardingType, ...]:
    """Return the types that a table may have. Raises DropInError where none is left."""
    asked, kernels = limit.sharding_types, limit.compute_kernels
    known = tuple(each for each in ShardingType if each in of_sharder)
    if asked is not None:
        allowed = tuple(each for each in known if each in asked)
    else:
        unasked = tuple(each for each in known if each in BY_DEFAULT)
        allowed = tuple(each for each in unasked if Family.of(each) in families) or unasked
    if not allowed:
        found = asked if asked is not None and known else of_sharder
        raise DropInError(
            f"table {known_as!r} may only be {', '.join(map(str, found))}; this planner places tables "
            f"{', '.join(known or ShardingType)}; hint: allow one of them, or plan the module with TorchRec's planner"
        )
    run = tuple(each for each in allowed if kernels is None or any(kernel in kernels for kernel in kernels_of(each)))
    if not run:
        raise DropInError(
            f"table {known_as!r} may only use the kernels {', '.join(kernels or ())}; this planner places fused ones, "
            "also in host memory, and dense ones of data_parallel tables; hint: allow `fused`, or plan the module with "
            "TorchRec's planner"
        )
    return run


def _warnings(given: Mapping[str, ParameterConstraints]) -> list[str]:
    found = []
    default = ParameterConstraints()
    for field in (each.name for each in fields(ParameterConstraints) if each.name not in _KEPT):
        tables = [name for name, limit in given.items() if getattr(limit, field) != getattr(default, field)]
        if tables:
            found.append(
                f"constraints[{tables[0]!r}].{field} is not kept, nor that of {len(tables) - 1} more tables"
                if len(tables) > 1
                else f"constraints[{tables[0]!r}].{field} is not kept"
            )
    return found

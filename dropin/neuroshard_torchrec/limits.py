"""TorchRec's ParameterConstraints and sharders as constraints of a plan; a sentence for what has no counterpart."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.documents.request import Constraints, TableConstraints
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, kernels_of
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import PoolingType

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import Limits, ModelTables

BY_DEFAULT = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
"""Sharding types that are searched where neither constraints nor sharder ask for others."""
_NEVER_UNASKED = ShardingType.DATA_PARALLEL
"""The script itself has to update such tables."""

_BY_ROWS = frozenset({ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.GRID})
"""Sharding types that TorchRec's planner searches by default, and this one where constraints name them."""

_KEPT = frozenset({"sharding_types", "compute_kernels", "min_partition", "pooling_factors"})
"""Fields of ParameterConstraints that a plan follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Translated:
    """Constraints of a plan."""

    constraints: Constraints
    asks_for_host_memory: bool
    """Whether a table may be in host memory."""
    column_wise_only: frozenset[str]
    """Tables that are to be called column_wise also where they are whole, as TorchRec has it."""
    warnings: tuple[str, ...]
    """What was asked for and is not kept."""


def translated(
    tables: ModelTables,
    limits: Limits | None,
    *,
    max_memory_bytes: int | None,
    compute_device: str,
    has_host_memory: bool = False,
) -> Translated:
    """Return the constraints of all tables.

    Args:
        tables: of the module.
        limits: TorchRec's, by the table's name in its collection.
        max_memory_bytes: of each device. None: all it has.
        compute_device: in torch's words; a sharder's types may depend on it.
        has_host_memory: whether nodes have memory for tables. Without it, a table that may also be in device memory
            is placed there.

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
    column_wise_only: set[str] = set()
    for known_as, (path, name) in tables.places.items():
        limit = given.get(name, ParameterConstraints())
        types = _types(known_as, limit, tuple(sharders[path].sharding_types(compute_device)))
        if ShardingType.COLUMN_WISE in types and ShardingType.TABLE_WISE not in types:
            column_wise_only.add(known_as)
        own[known_as] = _table_constraints(name, types, limit, has_host_memory=has_host_memory)
    return Translated(
        constraints=Constraints(
            max_memory_bytes_per_device=max_memory_bytes,
            tables={name: each for name, each in own.items() if each != TableConstraints(sharding_types=BY_DEFAULT)},
        ),
        asks_for_host_memory=any(each.compute_kernels is not None for each in own.values()),
        column_wise_only=frozenset(column_wise_only),
        warnings=(*_warnings(given), *_rows_not_searched(tables, given, compute_device)),
    )


def _table_constraints(
    name: str, types: tuple[ShardingType, ...], limit: ParameterConstraints, *, has_host_memory: bool
) -> TableConstraints:
    """Return the constraints of one table; one shard is column_wise too. Raises DropInError."""
    kernels = tuple(each for each in ComputeKernel if each in (limit.compute_kernels or ()))
    asks_for_host = any(each.is_on_host for each in kernels) and (has_host_memory or ComputeKernel.FUSED not in kernels)
    is_cut = ShardingType.COLUMN_WISE in types
    may_be_whole = is_cut and ShardingType.TABLE_WISE not in types
    raw = {
        "sharding_types": (ShardingType.TABLE_WISE, *types) if may_be_whole else types,
        "max_shards": None if is_cut or ShardingType.GRID in types else 1,
        "min_shard_width": limit.min_partition,
        "compute_kernels": kernels if asks_for_host else None,
    }
    try:
        return validated(TableConstraints, raw, where=f"constraints[{name!r}].min_partition")
    except DocumentError as error:
        raise DropInError(str(error)) from error


def _types(known_as: str, limit: ParameterConstraints, of_sharder: tuple[str, ...]) -> tuple[ShardingType, ...]:
    """Return the types that a table may have. Raises DropInError where none is left."""
    asked, kernels = limit.sharding_types, limit.compute_kernels
    known = tuple(each for each in ShardingType if each in of_sharder)
    if asked is not None:
        allowed = tuple(each for each in known if each in asked)
    else:
        allowed = tuple(each for each in known if each in BY_DEFAULT)
        allowed = allowed or tuple(each for each in known if each is not _NEVER_UNASKED)
    if not allowed:
        found = asked if asked is not None and known else of_sharder
        raise DropInError(
            f"table {known_as!r} may only be {', '.join(map(str, found))}; this planner places tables "
            f"{', '.join(known or ShardingType)}: allow one of them, or plan the module with TorchRec's planner"
        )
    run = tuple(each for each in allowed if kernels is None or any(kernel in kernels for kernel in kernels_of(each)))
    if not run:
        raise DropInError(
            f"table {known_as!r} may only use the kernels {', '.join(kernels or ())}; this planner places fused ones, "
            "also in host memory, and dense ones of data_parallel tables: allow `fused`, or plan the module with "
            "TorchRec's planner"
        )
    return run


def _rows_not_searched(tables: ModelTables, given: Limits, compute_device: str) -> tuple[str, ...]:
    """Name in one sentence the tables that TorchRec's planner would search by rows too; none next to means."""
    by_columns: list[str] = []
    for collection in tables.collections:
        offered = {*collection.sharder.sharding_types(compute_device)}
        if not (offered & _BY_ROWS and offered & {*BY_DEFAULT}):
            continue
        if any(getattr(config, "pooling", None) is PoolingType.MEAN for config in collection.configs):
            continue
        names = {place: known_as for known_as, place in tables.places.items()}
        by_columns += [
            names[collection.path, config.name]
            for config in collection.configs
            if given.get(config.name, ParameterConstraints()).sharding_types is None
        ]
    if not by_columns:
        return ()
    what = f"table {by_columns[0]!r} is" if len(by_columns) == 1 else f"{len(by_columns)} tables are"
    sentence = (
        f"{what} planned whole or by columns, and not by rows as TorchRec's planner may; permit rows by "
        "ParameterConstraints(sharding_types=['table_wise', 'column_wise', 'row_wise'])"
    )
    return (sentence,)


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

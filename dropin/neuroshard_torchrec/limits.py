"""TorchRec's ParameterConstraints and sharders as constraints of a plan; a sentence for what has no counterpart."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from neuroshard_api.document import DocumentError, validated
from neuroshard_api.request import Constraints, TableConstraints
from neuroshard_api.sharding import ShardingType
from torchrec.distributed.planner.types import ParameterConstraints

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import Limits, ModelTables

SEARCHED = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
"""Sharding types that the search places."""

_KEPT = frozenset({"sharding_types", "compute_kernels", "min_partition", "pooling_factors"})
"""Fields of ParameterConstraints that a plan follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Translated:
    """Constraints of a plan."""

    constraints: Constraints
    column_wise_only: frozenset[str]
    """Tables that are to be called column_wise also where they are whole, as TorchRec has it."""
    warnings: tuple[str, ...]
    """What was asked for and is not kept."""


def translated(
    tables: ModelTables, limits: Limits | None, *, max_memory_bytes: int | None, compute_device: str
) -> Translated:
    """Return the constraints of all tables.

    Args:
        tables: of the module.
        limits: TorchRec's, by the table's name in its collection.
        max_memory_bytes: of each device. None: all it has.
        compute_device: in torch's words; a sharder's types may depend on it.

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
        if types == (ShardingType.COLUMN_WISE,):
            column_wise_only.add(known_as)
        own[known_as] = _table_constraints(name, types, limit.min_partition)
    return Translated(
        constraints=Constraints(
            max_memory_bytes_per_device=max_memory_bytes,
            tables={name: each for name, each in own.items() if each != TableConstraints(sharding_types=SEARCHED)},
        ),
        column_wise_only=frozenset(column_wise_only),
        warnings=tuple(_warnings(given)),
    )


def _table_constraints(name: str, types: tuple[ShardingType, ...], min_partition: int | None) -> TableConstraints:
    """Return the constraints of one table; one shard is column_wise too. Raises DropInError."""
    is_cut = ShardingType.COLUMN_WISE in types
    raw = {
        "sharding_types": SEARCHED if is_cut else types,
        "max_shards": None if is_cut else 1,
        "min_shard_width": min_partition,
    }
    try:
        return validated(TableConstraints, raw, where=f"constraints[{name!r}].min_partition")
    except DocumentError as error:
        raise DropInError(str(error)) from error


def _types(known_as: str, limit: ParameterConstraints, of_sharder: tuple[str, ...]) -> tuple[ShardingType, ...]:
    asked = limit.sharding_types
    allowed = tuple(each for each in SEARCHED if each in of_sharder and (asked is None or each in asked))
    if not allowed:
        found = asked if asked is not None and any(each in of_sharder for each in SEARCHED) else of_sharder
        raise DropInError(
            f"table {known_as!r} may only be {', '.join(map(str, found))}; this planner places tables "
            f"{' and '.join(SEARCHED)}: allow one of them, or plan the module with TorchRec's planner"
        )
    kernels = limit.compute_kernels
    if kernels is not None and "fused" not in kernels:
        raise DropInError(
            f"table {known_as!r} may only use the kernels {', '.join(kernels)}; this planner places fused ones: "
            "allow `fused`, or plan the module with TorchRec's planner"
        )
    return allowed


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

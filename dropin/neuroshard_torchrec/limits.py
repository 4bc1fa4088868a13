"""TorchRec's ParameterConstraints and sharders as constraints of a plan; a sentence for what has no counterpart."""

from collections.abc import Mapping
from dataclasses import dataclass

from neuroshard_api.request import Constraints, TableConstraints
from neuroshard_api.sharding import ShardingType
from torchrec.distributed.planner.types import ParameterConstraints

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import Limits, ModelTables

SEARCHED = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
"""Sharding types that the search places."""

_WITHOUT_COUNTERPART = (
    "cache_params",
    "enforce_hbm",
    "stochastic_rounding",
    "bounds_check_mode",
    "key_value_params",
    "device_group",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Translated:
    """Constraints of a plan."""

    constraints: Constraints
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
    for known_as, (path, name) in tables.places.items():
        limit = given.get(name, ParameterConstraints())
        types = _types(known_as, limit, tuple(sharders[path].sharding_types(compute_device)))
        own[known_as] = TableConstraints(
            sharding_types=types,
            max_shards=1 if ShardingType.COLUMN_WISE not in types else None,
            min_shard_width=limit.min_partition,
        )
    return Translated(
        constraints=Constraints(
            max_memory_bytes_per_device=max_memory_bytes,
            tables={name: each for name, each in own.items() if each != TableConstraints(sharding_types=SEARCHED)},
        ),
        warnings=tuple(_warnings(given)),
    )


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
    for field in _WITHOUT_COUNTERPART:
        tables = [name for name, limit in given.items() if getattr(limit, field, None) is not None]
        if tables:
            found.append(
                f"constraints[{tables[0]!r}].{field} is not kept, nor that of {len(tables) - 1} more tables"
                if len(tables) > 1
                else f"constraints[{tables[0]!r}].{field} is not kept"
            )
    return found

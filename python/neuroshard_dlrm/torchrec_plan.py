"""Shards of plans made by TorchRec, as those of plan documents. Calling it needs torchrec."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table, allowed_name
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, kernels_of
from neuroshard_planner.errors import PlanError

DEFAULT_LOAD_FACTOR = 0.2
"""Of FBGEMM's caches where a plan names none."""

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan


def placements(sharding_plan: "ShardingPlan", request: PlanRequest) -> tuple[TablePlacement, ...]:
    """Return the shards of a TorchRec plan in the request's order, blocks without rows left out.

    A table may have its collection's path before its name in the request, as where two collections have one name, and
    has it with the characters that table sets allow. Tables that are not in the request come last, for the checks to
    name.

    Raises:
        PlanError: a table is sharded or computed in a way that has no name here, or places its shards nowhere, or two
            have one name, or the plan is damaged.
    """
    with _damage_named():
        return _placements(sharding_plan, request)


def node_problem(sharding_plan: "ShardingPlan", devices_per_node: int) -> str | None:
    """Return the place where a plan numbers a node's devices otherwise than nodes of this size. None: nowhere.

    Args:
        sharding_plan: of TorchRec.
        devices_per_node: the device of a rank is the remainder of the rank by it.

    Raises:
        PlanError: the plan is damaged.
    """
    with _damage_named():
        for module in sharding_plan.plan.values():
            for name, sharding in module.items():
                for shard in () if sharding.sharding_spec is None else sharding.sharding_spec.shards:
                    rank, index = shard.placement.rank(), shard.placement.device().index
                    if index not in {None, rank % devices_per_node}:
                        return (
                            f"{name}: has rank {rank} on device {index} of its node, which is device "
                            f"{rank % devices_per_node} where nodes have {devices_per_node}"
                        )
    return None


@contextmanager
def _damage_named() -> Iterator[None]:
    """Raise PlanError for what reading a plan with parts of other types or shapes raises."""
    try:
        yield
    except PlanError:
        raise
    except (AttributeError, TypeError, IndexError, ValueError) as error:
        found = " ".join(str(error).split())
        raise PlanError(
            f"the sharding plan is damaged ({type(error).__name__}: {found}); hint: give what collective_plan returned"
        ) from error


def _placements(sharding_plan: "ShardingPlan", request: PlanRequest) -> tuple[TablePlacement, ...]:
    wanted = {table.name: table for table in request.tables.tables}
    given: dict[str, ParameterSharding] = {}
    for path, module in sharding_plan.plan.items():
        for own_name, sharding in module.items():
            names = (f"{path}/{own_name}", own_name, allowed_name(f"{path}/{own_name}"), allowed_name(own_name))
            name = next((each for each in names if each in wanted), own_name)
            if name in given:
                raise PlanError(
                    f"{path}.{own_name}: is in two collections; hint: call it '{path}/{own_name}' in the request"
                )
            given[name] = sharding
    order = [name for name in wanted if name in given] + [name for name in given if name not in wanted]
    return tuple(_table(name, wanted.get(name), given[name], request.topology.num_devices) for name in order)


def _table(name: str, table: Table | None, sharding: "ParameterSharding", num_devices: int) -> TablePlacement:
    """Return the shards of one table, by ascending column and row; ``table`` None: not in the request."""
    if sharding.sharding_type not in list(ShardingType):
        raise PlanError(
            f"{name}.sharding_type: is {sharding.sharding_type!r}; hint: give one of {', '.join(ShardingType)}"
        )
    kind = ShardingType(sharding.sharding_type)
    kernel = next((each for each in kernels_of(kind) if each == sharding.compute_kernel), None)
    if kernel is None:
        raise PlanError(
            f"{name}.compute_kernel: is {sharding.compute_kernel!r}, a {kind} table runs with "
            f"{' or '.join(kernels_of(kind))}"
        )
    if kind is ShardingType.DATA_PARALLEL:
        rows, columns = (1, 4) if table is None else (table.num_embeddings, table.embedding_dim)
        copies = [Shard(device=rank, num_rows=rows, num_columns=columns) for rank in range(num_devices)]
        return TablePlacement(name=name, sharding_type=kind, shards=tuple(copies))
    if sharding.sharding_spec is None:
        raise PlanError(
            f"{name}.sharding_spec: is missing; hint: give an EnumerableShardingSpec with every shard's place"
        )
    shards = sorted(
        (
            Shard(
                device=metadata.placement.rank(),
                row_offset=metadata.shard_offsets[0],
                num_rows=metadata.shard_sizes[0],
                column_offset=metadata.shard_offsets[1],
                num_columns=metadata.shard_sizes[1],
            )
            for metadata in sharding.sharding_spec.shards
            if metadata.shard_sizes[0]
        ),
        key=lambda shard: (shard.column_offset, shard.row_offset),
    )
    whole = table is not None and len(shards) == 1 and shards[0].num_columns == table.embedding_dim
    if whole and kind is ShardingType.COLUMN_WISE:
        kind = ShardingType.TABLE_WISE
    if not kernel.is_on_host:
        return TablePlacement(name=name, sharding_type=kind, shards=tuple(shards))
    return TablePlacement(
        name=name,
        sharding_type=kind,
        kernel=kernel,
        cache_load_factor=_load_factor(sharding) if kernel is ComputeKernel.FUSED_UVM_CACHING else None,
        shards=tuple(shards),
    )


def _load_factor(sharding: "ParameterSharding") -> float:
    """Return rows of a table's cache over its rows."""
    params = sharding.cache_params
    return DEFAULT_LOAD_FACTOR if params is None or params.load_factor is None else float(params.load_factor)

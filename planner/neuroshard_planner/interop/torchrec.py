"""Plans made by TorchRec, as plan documents. Importing this needs nothing; calling it needs torchrec."""

from typing import TYPE_CHECKING

from neuroshard_api.plan import Plan, Shard, ShardingType, TablePlacement
from neuroshard_api.request import Algorithm, PlanRequest
from neuroshard_api.tables import Table

from neuroshard_planner.errors import PlanError
from neuroshard_planner.interop.imported_plan import imported_plan
from neuroshard_planner.planning import Bundle
from neuroshard_planner.plans.tables import SCORED_TYPES

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan


def from_sharding_plan(
    sharding_plan: "ShardingPlan",
    request: PlanRequest,
    *,
    bundle: Bundle,
    algorithm: Algorithm = Algorithm.TORCHREC,
) -> Plan:
    """Return a plan document for a TorchRec plan: its own shards, with costs, bound and baselines of this planner.

    Args:
        sharding_plan: of any module paths; its tables together are the request's.
        request: what the plan answers; the result carries it with the given algorithm.
        bundle: predicts the costs.
        algorithm: what the document says the plan was found by.

    Raises:
        PlanError: tables, shards, devices, constraints or memory do not match the request, or a table is sharded
            or computed in a way that cannot be scored.
    """
    request = request.model_copy(update={"algorithm": algorithm})
    wanted = {table.name: table for table in request.tables.tables}
    given = {name: sharding for module in sharding_plan.plan.values() for name, sharding in module.items()}
    # The request's tables in its order, then whatever else there is: the checks name both what lacks and what is over.
    order = [name for name in wanted if name in given] + [name for name in given if name not in wanted]
    tables = tuple(_table(name, wanted.get(name), given[name]) for name in order)
    return imported_plan(tables, request, bundle=bundle)


def _table(name: str, table: Table | None, sharding: "ParameterSharding") -> TablePlacement:
    """Return the shards of one table, by ascending column; ``table`` None: not in the request."""
    known = [kind.value for kind in SCORED_TYPES]
    if sharding.sharding_type not in known:
        raise PlanError(
            f"{name}.sharding_type: is {sharding.sharding_type!r}, the cost models score {' and '.join(known)} only"
        )
    if sharding.compute_kernel != "fused":
        raise PlanError(f"{name}.compute_kernel: is {sharding.compute_kernel!r}, the cost models are for 'fused' only")
    if sharding.sharding_spec is None:
        raise PlanError(f"{name}.sharding_spec: is missing; give an EnumerableShardingSpec with every shard's place")
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
        ),
        key=lambda shard: shard.column_offset,
    )
    whole = table is not None and len(shards) == 1 and shards[0].num_columns == table.embedding_dim
    kind = ShardingType.TABLE_WISE if whole else ShardingType(sharding.sharding_type)
    return TablePlacement(name=name, sharding_type=kind, shards=tuple(shards))

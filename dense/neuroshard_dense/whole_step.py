"""The whole step of a plan: its embedding part, the dense part on the devices, and what the host does meanwhile.

A GPU's host runs ahead while the trainer's pipeline lets it, so the step is the longer of both: CUDA queues launches,
and TrainPipelineSparseDist waits for the device only where it reads the sizes of the next batch's exchange, which are
on a stream of their own. Without a pipeline the embedding part has its launches in its price already, and the longer of
both is a lower limit. On a CPU the host's thread computes, and the step is the sum.

The search does not see this price: where devices decide the step it moves nothing, and where the host does, all
placements of as many exchanges take the same.
"""

from collections.abc import Sequence
from dataclasses import replace

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.whole_step import HostCost, WholeStep
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_costs.deduplication import repeating_groups
from neuroshard_costs.exchanges import TransferModel
from neuroshard_costs.host import HostWork, host_work

from neuroshard_dense.options import NUM_GATHERS, num_gathered
from neuroshard_dense.replicated import optimizer_pass, replicated_cost


def with_whole_step(plan: Plan, *, costs: TransferModel) -> Plan:
    """Return the plan with the price of a whole step, and that of the baselines.

    Args:
        plan: with the time of its dense part, if that was counted.
        costs: prices what no plan decides.
    """
    plan = _with_whole_dense_part(plan, costs)
    dense_ms = None if plan.dense_cost is None else plan.dense_cost.total_ms
    product_saved_ms = sum(each.product_saved_ms or 0.0 for each in plan.deduplication or ())

    request, of_shards = plan.resolved, collectives_of_shards(plan)

    def step(tables: Sequence[TablePlacement], embedding_ms: float, saved_ms: float = 0.0) -> WholeStep:
        work = replace(host_work(request, tables, plan.deduplication or ()), **of_shards)
        own_ms = None if dense_ms is None else max(0.0, dense_ms - saved_ms)
        return _step(request, work, embedding_ms, own_ms, costs)

    whole = tuple(_of_baselines(table, request) for table in request.tables.tables)
    baselines = tuple(
        each if each.total_ms is None else each.model_copy(update={"step_ms": step(whole, each.total_ms).total_ms})
        for each in plan.baselines
    )
    own = step(plan.tables, plan.predicted.total_ms, product_saved_ms)
    return plan.model_copy(update={"step": own, "baselines": baselines})


def whole_step(
    request: PlanRequest, tables: Sequence[TablePlacement], *, embedding_ms: float, costs: TransferModel
) -> WholeStep:
    """Return the step of a request's tables in some placement, next to a dense part that is replicated."""
    dense_ms = None
    if request.dense is not None:
        dense_ms = replicated_cost(request, request.dense, costs=costs).total_ms
    return _step(request, host_work(request, tables, repeating_groups(request)), embedding_ms, dense_ms, costs)


def _step(
    request: PlanRequest, work: HostWork, embedding_ms: float, dense_ms: float | None, costs: TransferModel
) -> WholeStep:
    times = costs.host_times(work)
    host = HostCost(tables_ms=times.tables_ms, dense_ms=times.dense_ms, launches=times.launches, source=times.source)
    both = sum if request.topology.device.is_cpu else max
    matrices_ms = _matrices_ms(request, costs)
    total_ms = both((embedding_ms + (dense_ms or 0.0) + (matrices_ms or 0.0), host.total_ms))
    return WholeStep(
        total_ms=total_ms, embedding_ms=embedding_ms, dense_ms=dense_ms, matrices_ms=matrices_ms, host=host
    )


def _matrices_ms(request: PlanRequest, costs: TransferModel) -> float | None:
    """Return the time of the matrix products of a dense part that was not counted. None: none are known."""
    if request.dense_matrices is None:
        return None
    forward_flops, backward_flops, products = request.dense_matrices.passes(request.batch_size_per_device)
    return sum(costs.matrices_ms(forward_flops, backward_flops)) + costs.dense_other_ms(products)


def collectives_of_shards(plan: Plan) -> dict[str, int]:
    """Return the gathers of weights and the reductions of gradients of a plan's sharded modules in a step."""
    profile, gathers, scatters = plan.request.dense, 0, 0
    if profile is None or plan.dense is None:
        return {}
    counted = {path: unit for unit in profile.units for path in unit.modules}
    for each in plan.dense.units:
        if each.group is None:
            continue
        parts = num_gathered(counted[each.module], is_split=bool(each.split))
        gathers += parts * NUM_GATHERS[each.strategy]
        scatters += parts
    return {"gathers": gathers, "scatters": scatters}


def _of_baselines(table: Table, request: PlanRequest) -> TablePlacement:
    """Return a table as baselines place it: whole, on some device, or in a type that its constraints bind it to."""
    types, kernels = request.placed_types_of(table.name), request.constraints.compute_kernels_of(table.name)
    kind = next((each for each in types or () if each.is_by_columns), types[0] if types else ShardingType.TABLE_WISE)
    shard = Shard(device=0, num_rows=table.num_embeddings, num_columns=table.embedding_dim)
    kernel = (
        None if kernels is None or ComputeKernel.FUSED in kernels or kind is ShardingType.DATA_PARALLEL else kernels[0]
    )
    return TablePlacement(name=table.name, sharding_type=kind, kernel=kernel, shards=(shard,))


def _with_whole_dense_part(plan: Plan, costs: TransferModel) -> Plan:
    """Return the plan with the times of its dense part that are the same in every layout."""
    profile = plan.request.dense
    if profile is None or plan.dense is None:
        return plan
    further = {
        "other_ms": None if profile.passes is None else costs.dense_other_ms(profile.passes),
        "optimizer_ms": costs.dense_traffic_ms(optimizer_pass(profile, plan.dense.memory)),
    }
    return plan.model_copy(update={"dense": plan.dense.model_copy(update=further)})

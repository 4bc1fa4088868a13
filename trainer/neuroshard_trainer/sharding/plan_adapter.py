"""A plan of NeuroShard as TorchRec runs it, for this trainer and for yours. Reads a plan; decides nothing.

plan = read_plan(Path("plan.json"), world_size=dist.get_world_size())
model = DistributedModelParallel(
    model, plan=sharding_plan(plan, module_path="tables"), sharders=[embedding_sharder(learning_rate=0.02, ...)], ...
)
prove_sharding(model, plan)
optimizer = replicated_optimizer(model, ..., learning_rate=0.02)  # of data_parallel tables; None where there are none
"""

import os
from collections.abc import Sequence
from pathlib import Path

import fbgemm_gpu
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.servers import untrained_servers
from neuroshard_api.documents.tables import DataType as Element
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.torchrec_plan import ComputeDevice, TorchRecParameter, TorchRecPlan
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.kernels import release_of
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import (
    POD_SIZE_VARIABLE,
    placement_problems,
    pod_size_problem,
    release_problem,
)
from torchrec.distributed.types import (
    CacheParams,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)
from torchrec.modules.embedding_configs import DataType


def read_plan(
    path: Path, *, world_size: int, tables: Sequence[Table] | None = None, has_servers: bool = False
) -> GivenPlan:
    """Return a plan that can be run by ``world_size`` processes.

    Args:
        path: a plan file.
        world_size: processes there are, one per device.
        tables: those of the model, with their own types or those of the plan; None takes the plan's own.
        has_servers: whether the last processes may be those of embedding servers.

    Raises:
        InputError: the file is not a plan, or the plan is for another model or for another number of processes, or
            TorchRec cannot run its placements, or would compute wrong values.
    """
    plan = read_any_plan(path)
    if plan.servers is not None and not has_servers:
        raise InputError(
            f"{path}: has tables on embedding servers, which only NeuroShard's own trainer has; hint: plan without them"
        )
    untrained = None if plan.servers is None else untrained_servers(plan.request)
    if untrained is not None:
        raise InputError(f"{path}: {untrained}")
    num_servers = plan.num_server_processes
    if plan.num_devices + num_servers != world_size:
        servers = f" and {num_servers} processes of embedding servers" if num_servers else ""
        raise InputError(
            f"{path}: is for {plan.num_devices} devices{servers}, there are {world_size} processes; "
            "hint: start as many processes as the plan has devices, or plan again"
        )
    problem = _other_model(plan, plan.trained_tables.tables if tables is None else tables)
    if problem is None:
        problem = next(placement_problems(plan.tables, plan.resolved), None)
    served = plan.of_servers
    if problem is None and served is not None:
        problem = next(placement_problems(served.tables, served.resolved), None)
    if problem is not None:
        raise InputError(f"{path}: {problem}")
    return plan


def read_any_plan(path: Path) -> GivenPlan:
    """Return a plan for any number of processes. Raises InputError where the file is not a plan."""
    try:
        return GivenPlan.read(path)
    except DocumentError as error:
        raise InputError(str(error)) from error


def require_lasting_gradients(plan: GivenPlan) -> None:
    """Do nothing if the gradients of the plan's pooled embeddings survive their type.

    Gradients have the pooled embeddings' type. Those of a mean loss are around 1e-9 of a sample, below the least
    number of FP16 (6e-8): nearly all become 0 unless the loss is scaled, which optimizers fused into the tables'
    kernels cannot undo. BF16 has FP32's range.

    Raises:
        InputError: they do not.
    """
    found = plan.request.memory.output_data_type
    if found is Element.FP16:
        raise InputError(
            f"the plan has pooled embeddings of type {found}, in which gradients of a mean loss become 0; "
            "hint: plan again with memory.output_data_type BF16, which keeps FP32's range (FP32 for CPUs)"
        )


def sharding_plan(
    plan: GivenPlan, *, module_path: str | None = None, compute_device: ComputeDevice = "cuda"
) -> ShardingPlan:
    """Return the plan as DistributedModelParallel takes it.

    Args:
        plan: as read_plan returns it.
        module_path: of the EmbeddingBagCollection within the module given to DistributedModelParallel; an empty
            string if the collection itself is given. If unset: each table is in the collection that it names.
        compute_device: ``cpu`` for processes that run gloo on the host.

    Raises:
        InputError: TorchRec cannot run the plan, or would compute wrong values, or FBGEMM has no kernel for a type or
            a width.
    """
    request = plan.resolved
    problem = request.kernel_problem(compute_device)
    if problem is not None:
        raise InputError(f"the plan cannot be run on these devices: {problem}, and plan again")
    if plan.replication is None:  # groups know their domains themselves
        problem = pod_size_problem(plan.tables, request.topology, os.environ.get(POD_SIZE_VARIABLE))
        if problem is not None:
            raise InputError(f"the plan cannot be run here: {problem}")
    release = release_of(fbgemm_gpu.__version__)
    if compute_device == "cuda" and release is not None:
        problem = release_problem(plan.tables, request, release)
    if problem is not None:
        raise InputError(f"the plan cannot be run on these devices: {problem}")
    try:
        return load_sharding_plan(TorchRecPlan.of(plan, module_path=module_path, compute_device=compute_device))
    except DocumentError as error:
        raise InputError(str(error)) from error


def load_sharding_plan(exported: TorchRecPlan) -> ShardingPlan:
    """Return the result of ``neuroshard export`` in the form that DistributedModelParallel takes."""
    return ShardingPlan(
        plan={
            path: EmbeddingModuleShardingPlan({name: _sharding(parameter) for name, parameter in tables.items()})
            for path, tables in exported.modules.items()
        }
    )


def _sharding(parameter: TorchRecParameter) -> ParameterSharding:
    return ParameterSharding(
        sharding_type=parameter.sharding_type.value,
        compute_kernel=parameter.compute_kernel.value,
        cache_params=None
        if parameter.cache_load_factor is None
        else CacheParams(load_factor=parameter.cache_load_factor),  # by default it replaces what was not used longest
        ranks=list(parameter.ranks),
        sharding_spec=None
        if parameter.sharding_type is ShardingType.DATA_PARALLEL
        else EnumerableShardingSpec(
            [
                ShardMetadata(
                    shard_offsets=list(shard.shard_offsets),
                    shard_sizes=list(shard.shard_sizes),
                    placement=shard.placement,
                )
                for shard in parameter.shards
            ]
        ),
        output_dtype=None if parameter.output_dtype is None else DataType[parameter.output_dtype.value],
    )


def _other_model(plan: GivenPlan, tables: Sequence[Table]) -> str | None:
    """Return the difference between the plan's tables and the model's; None: there is none."""
    planned = {table.name: table for table in plan.trained_tables.tables}
    own = {table.name: table for table in plan.request.tables.tables}
    placed = [table.name for table in plan.tables]
    far = () if plan.servers is None else [table.name for table in plan.servers.tables]
    for table in tables:
        if table.name not in planned or table.name not in {*placed, *far}:
            return f"has no table {table.name!r}, which the model has; hint: plan again for this model"
        ours, found = _definition(table), _definition(planned[table.name])
        if ours not in {found, _definition(own[table.name])}:
            return f"table {table.name!r} has {found}, the model's has {ours}; hint: plan again for this model"
    known = {table.name for table in tables}
    extra = next((name for name in (*planned, *placed) if name not in known), None)
    if extra is not None:
        return f"has a table {extra!r}, which the model does not have; hint: plan again for this model"
    if placed != [name for name in planned if name not in far]:
        return "its tables are not in the order of its request; hint: make the plan again"
    return None


def _definition(table: Table) -> str:
    pooling = " of means" if table.is_mean else ""
    return f"{table.num_embeddings} x {table.embedding_dim} {table.data_type}{pooling}"

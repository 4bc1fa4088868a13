"""The ways to form groups of devices that each hold all tables, as a request permits them."""

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import Grouping, averaging_problem, groupings


def permitted_groups(request: PlanRequest) -> tuple[Grouping, ...]:
    """Return the ways to form groups that a request permits.

    Raises:
        ValueError: the tables cannot be averaged, a size forms no groups, or constraints exclude groups.
    """
    constraints, choices = request.constraints, request.replication
    assert choices is not None, "the request permits groups"
    problem = averaging_problem(request.optimizers)
    if problem is not None:
        raise ValueError(f"replication: {problem}, or leave it out")
    if request.dense_choices is not None and request.dense_choices.excludes_replicas:
        raise ValueError(
            "dense_choices: groups train dense parts that are replicated and not checkpointed"
            "; hint: leave it or replication out"
        )
    if request.topology.host_memory is not None:
        raise ValueError(
            "replication: groups average device memory alone, and the topology has host_memory"
            "; hint: leave one of them out"
        )
    if request.memory.managed_collision_bytes:
        raise ValueError(
            "replication: memory.managed_collision_bytes is that of tables over all devices, and a group's devices map "
            "more ids each; hint: leave replication out"
        )
    pinned = next((name for name, own in constraints.tables.items() if own.devices is not None), None)
    if pinned is not None or constraints.forbidden_devices:
        field = "forbidden_devices" if pinned is None else f"tables[{pinned!r}].devices"
        raise ValueError(
            f"constraints.{field}: names devices, whose numbers groups share; hint: leave it or replication out"
        )
    for table in request.tables.tables:
        types = constraints.sharding_types_of(table.name)
        if types == (ShardingType.DATA_PARALLEL,):
            raise ValueError(
                f"replication: {table.name!r} may be data_parallel alone, and groups have no such tables; "
                "hint: allow another type, or leave replication out"
            )
    try:
        return tuple(groupings(request.topology, choices))
    except ValueError as error:
        raise ValueError(f"replication.{error}") from error

"""A plan held against its own request: one sentence per fault. Needs no cost models and fixes nothing."""

from collections.abc import Iterator, Sequence

import numpy as np
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.placement_rules import as_asked, placement_devices
from neuroshard_api.sharding.table_lists import table_problems
from neuroshard_costs.memory_checks import memory_problems
from neuroshard_costs.memory_ledger import tables_memory
from neuroshard_costs.price_checks import price_problems

from neuroshard_planner.errors import PlanError, RequestError
from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.units import Unit, allowed_devices, most_shards, resolve_units


def require_sound(plan: Plan, *, must_fit: bool = True) -> None:
    """Do nothing if the plan has no problems. Raises PlanError that lists them.

    Args:
        plan: with a price.
        must_fit: whether it is a problem if a device has too little memory.
    """
    require_none(plan_problems(plan, must_fit=must_fit))


def require_none(problems: Sequence[str]) -> None:
    """Do nothing if there are no problems. Raises PlanError that lists them."""
    if problems:
        rest = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""  # noqa: PLR2004 - three fill a terminal
        raise PlanError(f"the plan does not match its request: {'; '.join(problems[:3])}{rest}; hint: make it again")


def plan_problems(plan: GivenPlan, *, must_fit: bool = True) -> list[str]:
    """Return the problems of a plan; each sentence begins with the field's path. An empty list: there are none.

    Faults that would make later checks meaningless are reported alone: first the list of tables, then the shards of
    each table, then constraints, memory, costs and labels together. A plan without a price has no memory and costs:
    nothing tells whether it fits.
    """
    problems = [*table_problems(plan.tables, plan.resolved), *_server_problems(plan, must_fit=must_fit)]
    if problems or not isinstance(plan, Plan):
        return problems or list(_constraint_problems(plan))
    return [
        *_constraint_problems(plan),
        *memory_problems(plan, memory_ledger(plan.resolved), must_fit=must_fit),
        *price_problems(plan),
    ]


def _server_problems(plan: GivenPlan, *, must_fit: bool) -> Iterator[str]:
    """Yield the problems of the tables on embedding servers, whose processes are the devices of a plan too."""
    served = plan.of_servers
    if served is None or plan.servers is None:
        return
    problems = table_problems(served.tables, served.resolved) or list(_constraint_problems(served))
    memory = tables_memory(memory_ledger(served.resolved), served.tables) if not problems else ()
    for process, found in enumerate(memory):
        if must_fit and found.used_bytes > found.capacity_bytes:
            problems.append(
                f"memory[{process}]: needs {found.used_bytes} bytes of {found.capacity_bytes}; give servers with more"
            )
    if not problems and plan.servers.memory not in {None, memory}:
        problems = ["memory: is not what the shards need; hint: make the plan again"]
    yield from (f"servers.{problem}" for problem in problems)


def _constraint_problems(plan: GivenPlan) -> Iterator[str]:
    request = plan.resolved
    try:
        units = resolve_units(request)
        allowed = allowed_devices(request, units)
    except RequestError as error:
        yield f"request.{error}"
        return
    for row, unit in enumerate(units):
        on = None if allowed is None else np.flatnonzero(allowed[row]).tolist()
        yield from unit_problems(plan.tables, request, unit, on)


def unit_problems(
    tables: Sequence[TablePlacement], request: PlanRequest, unit: Unit, allowed: Sequence[int] | None
) -> Iterator[str]:
    """Yield the broken constraints of a table or a co-located group; ``allowed`` None: any device will do."""
    constraints = request.constraints
    for index in unit.tables:
        placement = tables[index]
        path = f"tables[{index}].shards"
        yield from _kind_problems(index, placement, request)
        data_types, found = constraints.data_types_of(placement.name), request.tables.tables[index].data_type
        if data_types is not None and found not in data_types:
            yield (
                f"tables[{index}].data_type: {placement.name!r} is stored as {found}, the constraints allow "
                f"{', '.join(data_types)}"
            )
        devices = sorted(placement_devices(placement, request.topology))
        if allowed is not None and not set(devices) <= set(allowed):
            yield (
                f"{path}: {placement.name!r} is on devices {_listed(devices)}, the constraints allow {_listed(allowed)}"
            )
        if unit.is_group and placement.compute_kernel.is_on_host:
            yield (
                f"tables[{index}].kernel: {placement.name!r} is co-located, such tables run with fused"
                f"; hint: leave it out"
            )
        if len(unit.tables) > 1:
            continue
        most = most_shards(constraints, placement.name)
        if most is not None and placement.num_column_blocks > most:
            yield f"{path}: {placement.name!r} has {placement.num_column_blocks} shards, the constraints allow {most}"
        narrowest = min(shard.num_columns for shard in placement.shards)
        if narrowest < unit.min_shard_width:
            yield (
                f"{path}: {placement.name!r} has a shard of {narrowest} columns, the constraints ask for "
                f"{unit.min_shard_width} or more"
            )
        widest, most_columns = max(shard.num_columns for shard in placement.shards), constraints.max_shard_width
        if most_columns is not None and widest > most_columns:
            yield (f"{path}: {placement.name!r} has a shard of {widest} columns, the constraints allow {most_columns}")
    members = [tables[index] for index in unit.tables]
    places = {shard.device for member in members for shard in member.shards}
    if len(members) > 1 and (len(places) > 1 or any(len(member.shards) > 1 for member in members)):
        names = ", ".join(repr(member.name) for member in members[:5])
        yield f"tables[{unit.tables[0]}].shards: {names} must be whole on one device, found {_listed(sorted(places))}"


def _kind_problems(index: int, placement: TablePlacement, request: PlanRequest) -> Iterator[str]:
    """Yield the constraints that a table's sharding type or kernel breaks."""
    name, kind, kernel = placement.name, placement.sharding_type, as_asked(placement, request).compute_kernel
    types, kernels = request.placed_types_of(name), request.constraints.compute_kernels_of(name)
    if types is not None and kind not in types:
        yield f"tables[{index}].sharding_type: {name!r} is {kind}, the constraints allow {', '.join(types)}"
    if kernels is not None and kernel not in kernels:
        yield f"tables[{index}].kernel: {name!r} runs with {kernel}, the constraints allow {', '.join(kernels)}"


def _listed(devices: Sequence[int]) -> str:
    shown = ", ".join(str(device) for device in devices[:8])
    return shown if len(devices) <= 8 else f"{shown}, ... ({len(devices)} devices)"  # noqa: PLR2004 - a line's worth

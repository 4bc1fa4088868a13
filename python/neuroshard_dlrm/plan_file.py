"""Plan files as other commands take them: read, and checked against their own request."""

from pathlib import Path

from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, read_data
from neuroshard_api.documents.plan import GivenPlan, Plan, any_plan
from neuroshard_api.documents.table_files import SUFFIXES
from neuroshard_api.documents.tables import TableSet, planned_facts
from neuroshard_api.job.workers import EmbeddingServers, other_servers
from neuroshard_api.sharding.placement_rules import local_size_problem
from neuroshard_api.sharding.table_lists import table_problems
from neuroshard_planner.plans.checks import plan_problems


def is_plan_file(path: Path) -> bool:
    """Return whether a file of JSON or YAML is a plan, by its version."""
    suffix = Path(path.name.removesuffix(COMPRESSED_SUFFIX)).suffix.lower()
    return suffix in SUFFIXES and suffix != ".csv" and path.is_file() and GivenPlan.is_named_by(read_data(path))


def read_plan(path: Path, *, must_fit: bool = True) -> Plan:
    """Read a plan with a price that matches its own tables, devices and limits. Raises DocumentError.

    Args:
        path: of the file.
        must_fit: whether a device with too little memory is an error.
    """
    plan = read_given_plan(path, must_fit=must_fit)
    if not isinstance(plan, Plan):
        raise DocumentError(str(path), [plan.no_price])
    return plan


def read_given_plan(path: Path, *, must_fit: bool = True) -> GivenPlan:
    """Read a plan, with or without a price, that matches its own tables, devices, and limits. Raises DocumentError."""
    plan = any_plan(read_data(path), where=str(path))
    problems = plan_problems(plan, must_fit=must_fit)
    if problems:
        raise DocumentError(str(path), problems)
    return plan


def read_placement(path: Path) -> GivenPlan:
    """Read a plan whose shards cover its tables; its price may be that of an earlier release. Raises DocumentError."""
    plan = any_plan(read_data(path), where=str(path))
    problems = table_problems(plan.tables, plan.resolved)
    if problems:
        raise DocumentError(str(path), problems)
    return plan


def mismatches(
    plan: GivenPlan,
    tables: TableSet,
    *,
    world_size: int,
    devices_per_node: int,
    servers: EmbeddingServers | None = None,
) -> list[str]:
    """Return the reasons against a plan for these tables on nodes of that many devices; an empty list where it fits.

    Args:
        plan: with a price or without.
        tables: of the job.
        world_size: its devices.
        devices_per_node: on each node.
        servers: its embedding servers.
    """
    planned = plan.num_devices
    if planned != world_size:
        return [
            f"is for {planned} devices, the job has {world_size} (spec.trainer); hint: make a plan for {world_size}"
        ]
    other = other_servers(None if plan.servers is None else plan.request.servers, servers)
    if other is not None:
        return [f"{other}; hint: make a plan for the job's servers"]
    differing = {name for name, *_ in planned_facts(plan.request.tables.tables) ^ planned_facts(tables.tables)}
    if differing:
        shown = ", ".join(repr(name) for name in sorted(differing)[:5])
        return [f"is for other tables than the job's: {shown} differ in name, rows, columns or type; hint: plan again"]
    other_nodes = None
    if plan.replication is None:
        other_nodes = local_size_problem(plan.tables, plan.request.topology, devices_per_node)
    return plan_problems(plan) or ([] if other_nodes is None else [other_nodes])

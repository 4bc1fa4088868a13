"""Planners of four simulated H100, and what they planned."""

from typing import Any

from neuroshard_api.documents.plan import Plan
from neuroshard_torchrec import NeuroShardPlanner
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.types import ShardingPlan


def planner(**given: Any) -> NeuroShardPlanner:
    """Return a planner for four simulated H100 in one node."""
    topology = Topology(world_size=4, compute_device="cuda", local_world_size=4, hbm_cap=80 * 2**30)
    return NeuroShardPlanner(**{"topology": topology, "device_type": "h100-80gb", "batch_size": 1024, **given})


def planned(found: NeuroShardPlanner) -> Plan:
    """Return the plan that was made last."""
    assert found.last_plan is not None
    return found.last_plan


def kinds(found: ShardingPlan) -> dict[str, dict[str, str]]:
    """Return sharding types by path and name."""
    return {path: {name: each.sharding_type for name, each in tables.items()} for path, tables in found.plan.items()}

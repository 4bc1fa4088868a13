"""Plans of the trainer's tables next to a counted dense part, under a policy and a limit of memory."""

from neuroshard_api.documents.dense_layout import CheckpointingChoice, DenseChoices, DensePolicy
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, MemorySettings, PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import Topology
from neuroshard_planner.pipeline import plan as search
from support import builders
from support.planner.exact_costs import ExactCosts
from support.trainer.trainer_builders import TABLES


def planned(counted: DenseProfile, devices: Topology, policy: DensePolicy, *, most_bytes: int | None = None) -> Plan:
    """Return the plan for devices with this memory. None: with more than any plan needs."""
    request = PlanRequest(
        tables=builders.table_set(*TABLES),
        topology=devices,
        batch_size_per_device=counted.batch_size_per_device,
        optimizer=Optimizer.SGD,
        memory=MemorySettings(reserve_fraction=0.0),
        constraints=Constraints(max_memory_bytes_per_device=most_bytes),
        dense=counted,
        dense_choices=DenseChoices(policy=policy, checkpointing=CheckpointingChoice.NEVER),
    )
    return search(request, bundle=ExactCosts(devices.device))


def highest(plan: Plan) -> int:
    """Return the ledger's sum of the fullest device."""
    return max(each.used_bytes for each in plan.memory)

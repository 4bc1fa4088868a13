"""What the models of several plans need on the same devices at once, by their ledgers."""

from collections.abc import Mapping

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.training_comparison import PredictedMemory
from neuroshard_costs.memory_ledger import tables_memory
from neuroshard_planner.problem.counted_memory import memory_ledger


def predicted_memory(plans: Mapping[str, GivenPlan]) -> PredictedMemory:
    """Return the memory of the device that needs most under all plans together.

    Args:
        plans: by name, sound and for equally many devices; with or without a price.
    """
    ledgers = {name: tables_memory(memory_ledger(plan.resolved), plan.tables) for name, plan in plans.items()}
    by_device = list(zip(*ledgers.values(), strict=True))
    totals = [
        max(each.reserve_bytes for each in of_device) + sum(each.used_bytes - each.reserve_bytes for each in of_device)
        for of_device in by_device
    ]
    fullest = max(range(len(totals)), key=lambda device: totals[device])
    return PredictedMemory(
        device=fullest,
        plan_bytes={name: ledger[fullest].used_bytes for name, ledger in ledgers.items()},
        total_bytes=totals[fullest],
        capacity_bytes=min(each.capacity_bytes for each in by_device[fullest]),
    )

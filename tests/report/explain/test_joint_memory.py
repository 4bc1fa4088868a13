"""What several plans need on the same devices at once."""

from neuroshard_api.documents.request import MemorySettings
from neuroshard_costs.memory_ledger import MemoryLedger, tables_memory
from neuroshard_report.explain.joint_memory import predicted_memory
from support.builders import request, table
from support.planner.placements import by_columns, given_plan

RESERVE = 10**9


def test_plans_are_added_up_device_by_device_with_one_reserve() -> None:
    """Both put their table on device 1; the reserve is that of the process, not of a model."""
    member = table("a", num_embeddings=10**6, embedding_dim=64)
    asked = request(member, num_devices=2, memory=MemorySettings(reserve_fraction=0.0, reserve_bytes=RESERVE))
    plan = given_plan(asked, by_columns(member, (1, 64)))
    alone = tables_memory(MemoryLedger(asked), plan.tables)[1]

    found = predicted_memory({"one": plan, "other": plan})

    assert found.device == 1
    assert found.plan_bytes == {"one": alone.used_bytes, "other": alone.used_bytes}
    assert found.total_bytes == 2 * alone.used_bytes - RESERVE
    assert found.capacity_bytes == alone.capacity_bytes


def test_the_device_with_most_of_all_plans_counts() -> None:
    """Not the fullest of one plan: here 48 columns on device 0 against 64 and 16 on device 1."""
    member = table("a", num_embeddings=10**6, embedding_dim=64)
    asked = request(member, num_devices=2)
    plans = {
        "cut": given_plan(asked, by_columns(member, (0, 48), (1, 16))),
        "whole": given_plan(asked, by_columns(member, (1, 64))),
    }

    assert predicted_memory(plans).device == 1

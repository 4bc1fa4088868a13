"""Sets of terabytes find plans that keep every device's memory, in the real search with bounded work."""

import pytest
from neuroshard_api.documents.request import Constraints, SearchSettings
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.plans.checks import plan_problems
from support.builders import GIB, request, table, topology
from support.planner.searches import planned, used_bytes

TW, CW, RW, TWRW, GRID, _ = ShardingType
TERABYTE = 10**12


def test_a_table_of_two_terabytes_fits_on_64_devices_by_rows_alone() -> None:
    """4.3 billion rows of 128 columns: 34 GB of weights on each device by rows; the narrowest columns take 86 GB."""
    huge = table("huge", num_embeddings=4_300_000_000, embedding_dim=128)
    others = [table(f"t{index}", num_embeddings=10_000_000) for index in range(20)]
    nodes = topology(64, num_nodes=8, memory_bytes=80 * GIB)
    asked = request(
        huge,
        *others,
        topology=nodes,
        constraints=Constraints(sharding_types=(TW, CW, RW, TWRW, GRID)),
        search=SearchSettings(work_budget=2000),
    )

    plan = planned(asked)

    assert huge.num_embeddings * huge.embedding_dim * 4 > 2 * TERABYTE
    assert plan.tables[0].sharding_type in {RW, GRID}
    assert plan_problems(plan) == []
    assert plan.lower_bound_ms <= plan.predicted.total_ms
    with pytest.raises(InfeasibleError):
        planned(asked.model_copy(update={"constraints": Constraints(sharding_types=(TW, CW))}))


@pytest.mark.long
def test_two_thousand_tables_of_22_terabytes_fit_on_512_devices() -> None:
    """Sizes over three orders of magnitude, 43 GB of weights on the mean device."""
    members = [
        table(
            f"t{index}", num_embeddings=int(226_000 * 10 ** (3 * (index % 50) / 49)), embedding_dim=32 * (1 + index % 4)
        )
        for index in range(2000)
    ]
    nodes = topology(512, num_nodes=64, memory_bytes=80 * GIB)

    plan = planned(request(*members, topology=nodes, search=SearchSettings(work_budget=2000)))

    assert sum(each.num_embeddings * each.embedding_dim * 4 for each in members) > 22 * TERABYTE
    assert all(used_bytes(each) <= each.capacity_bytes for each in plan.memory)
    assert plan_problems(plan) == []

"""Plans for racks: NVLink domains are planned as large nodes, and racks without a link of their own as none."""

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints
from neuroshard_api.documents.topology import Rack, Topology
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.checks import plan_problems
from support import builders
from support.planner.exact_costs import ExactCosts

TABLES = [
    builders.table("user", num_embeddings=4_000_000, embedding_dim=128, pooling_factor=40.0),
    builders.table("item", num_embeddings=900_000, embedding_dim=64, pooling_factor=9.0),
    builders.table("country", num_embeddings=2_000, embedding_dim=32),
]
TWO_LEVELS = builders.topology(8, num_nodes=4)


def planned(topology: Topology) -> Plan:
    """Return the plan for these devices, all sharding types permitted."""
    return plan(builders.request(*TABLES, topology=topology), bundle=ExactCosts(topology.device))


def test_racks_with_the_link_that_is_between_them_change_no_plan() -> None:
    """Shards and prices are those of two levels."""
    racks = TWO_LEVELS.model_copy(update={"rack": Rack(num_nodes=2, link=TWO_LEVELS.inter_node)})
    three, two = planned(racks), planned(TWO_LEVELS)

    assert (three.tables, three.predicted, three.memory) == (two.tables, two.predicted, two.memory)


def test_a_domain_has_the_plan_of_a_node_of_as_many_devices() -> None:
    """Shards and prices are those of nodes of four; the plan can be run as written."""
    domains = TWO_LEVELS.model_copy(update={"rack": Rack(num_nodes=2, link=TWO_LEVELS.intra_node)})
    found, large = planned(domains), planned(builders.topology(8, num_nodes=2))

    assert (found.tables, found.predicted, found.memory) == (large.tables, large.predicted, large.memory)
    assert list(plan_problems(found)) == []


@pytest.mark.parametrize("kind", [ShardingType.TABLE_ROW_WISE, ShardingType.GRID])
def test_tables_by_node_are_cut_over_the_devices_of_a_domain(kind: ShardingType) -> None:
    """Four devices of two nodes each have a block of rows."""
    domains = TWO_LEVELS.model_copy(update={"rack": Rack(num_nodes=2, link=TWO_LEVELS.intra_node)})
    asked = builders.request(TABLES[0], topology=domains, constraints=Constraints(sharding_types=(kind,)))
    [placed] = plan(asked, bundle=ExactCosts(domains.device)).tables

    assert placed.sharding_type is kind
    assert {shard.device // 4 for shard in placed.shards} <= {0, 1}
    assert len(placed.shards) % 4 == 0

"""Which ranks changed lookups are computed on, and how much longer they can take there."""

import pytest
from neuroshard_api.documents.input_statistics import FeatureStatistics, InputStatistics
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.sharding.replication import GroupLayout, Replication
from neuroshard_trainer.drift.placement import FeaturePlacement
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, given_plan
from support.trainer import training_builders

USER = builders.table("user", num_embeddings=100, embedding_dim=32, feature_names=("viewer", "owner"))
ITEM = builders.table("item", num_embeddings=100, embedding_dim=32)
SHOP = builders.table("shop", num_embeddings=100, embedding_dim=32)
WORLD_SIZE = 4


def placement() -> FeaturePlacement:
    """Return a placement by columns, by rows, and of copies."""
    topology = builders.topology(WORLD_SIZE)
    request = PlanRequest(tables=builders.table_set(USER, ITEM, SHOP), topology=topology)
    return FeaturePlacement.of(
        given_plan(request, by_columns(USER, (0, 8), (1, 24)), by_rows(ITEM, topology), everywhere(SHOP, topology))
    )


def statistics(*changed: str, distinct: float = 0.5, **lookups: float) -> InputStatistics:
    """Return statistics with these lookups per sample; those of changed features have other distinct rows."""
    features = tuple(
        FeatureStatistics(
            feature=name,
            lookups_per_sample=per_sample,
            distinct_rows_per_lookup=distinct if name in changed else 0.5,
            distinct_lists_per_sample=1.0,
        )
        for name, per_sample in lookups.items()
    )
    return training_builders.input_statistics(features=features, changed_features=changed)


def test_compute_grows_with_lookups_and_columns() -> None:
    """Of the ranks that hold the changed table; a block of rows has its share, a copy its own batch."""
    before = statistics(viewer=1, owner=1, item=1, shop=1)
    since = statistics("viewer", viewer=3, owner=1, item=1, shop=1)

    found = placement().input_change(before, since)

    assert found.ranks_of_table == {"user": [0, 1]}
    rows, copy = 32.0, 32.0  # a quarter of the rows for all four ranks' batches, all rows for the own one
    for rank, columns in ((0, 8 * WORLD_SIZE), (1, 24 * WORLD_SIZE)):
        usual = 2 * columns + rows + copy
        assert found.compute_ratios[rank] == pytest.approx((usual + 2 * columns) / usual)
    assert found.compute_ratios[2] == 1.0


@pytest.mark.parametrize(
    ("layout", "nodes", "ranks_of_user"),
    [(GroupLayout.CONTIGUOUS, (1, 2), [1, 3]), (GroupLayout.STRIDED, (2, 1), [2, 3])],
)
def test_every_group_computes_a_table_for_its_own_batches(
    layout: GroupLayout, nodes: tuple[int, int], ranks_of_user: list[int]
) -> None:
    """A plan numbers the devices of one group; ranks and the size of nodes are those of all groups."""
    num_nodes, per_node = nodes
    group = builders.topology(num_nodes * per_node, num_nodes=num_nodes)
    world = builders.topology(4, num_nodes=2)
    request = PlanRequest(tables=builders.table_set(USER, ITEM, SHOP), topology=world, optimizer=Optimizer.SGD)
    replication = Replication(num_groups=2, layout=layout)
    plan = given_plan(request, by_columns(USER, (1, 32)), by_rows(ITEM, group), everywhere(SHOP, group))
    placed = FeaturePlacement.of(plan.model_copy(update={"replication": replication}))

    found = placed.input_change(
        statistics(viewer=1, owner=1, item=1, shop=1), statistics("viewer", viewer=2, owner=1, item=1, shop=1)
    )

    assert placed.ranks_per_node == 2
    assert found.ranks_of_table == {"user": ranks_of_user}
    rows = {"item": 32.0, "shop": 32.0}  # half of the rows for the batches of two ranks, all rows for the own one
    assert placed.columns["item"] == dict.fromkeys(range(WORLD_SIZE), rows["item"])
    assert placed.columns["shop"] == dict.fromkeys(range(WORLD_SIZE), rows["shop"])
    of_user = 2 * 2 * 32.0 + sum(rows.values())
    changed = (of_user + 2 * 32.0) / of_user
    assert found.compute_ratios == {
        rank: pytest.approx(changed if rank in ranks_of_user else 1.0) for rank in range(WORLD_SIZE)
    }


def test_rows_that_were_not_read_lately_cost_more() -> None:
    """With as many lookups, twice the distinct rows explain twice the time, at most; fewer explain nothing."""
    before = statistics(item=1)
    wider, narrower = (statistics("item", distinct=distinct, item=1) for distinct in (1.0, 0.25))

    assert placement().input_change(before, wider).compute_ratios == dict.fromkeys(range(WORLD_SIZE), 2.0)
    assert placement().input_change(before, narrower).compute_ratios == dict.fromkeys(range(WORLD_SIZE), 1.0)


def test_lookups_where_there_were_none_explain_any_time() -> None:
    """There is no ratio to a rank that computed nothing."""
    found = placement().input_change(statistics(item=0), statistics("item", item=2))

    assert all(ratio > 1000 for ratio in found.compute_ratios.values())


def test_without_a_plan_every_rank_may_hold_the_table() -> None:
    """A feature then is a table of its own, by a name that documents allow."""
    unknown = FeaturePlacement.unknown(["a b"], world_size=2, ranks_per_node=2)

    found = unknown.input_change(statistics(**{"a b": 1}), statistics("a b", **{"a b": 2}))

    assert found.ranks_of_table == {"a_b": [0, 1]}
    assert found.compute_ratios == {0: 2.0, 1: 2.0}

"""Plans in TorchRec's types become plan documents."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_dlrm.torchrec_plan import placements
from neuroshard_planner.errors import PlanError
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.imported_plan import imported_plan, plan_without_price
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_rows, everywhere, grid, on_host, on_node

pytestmark = [
    pytest.mark.torchrec,
    pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="torchrec is not installed"),
    pytest.mark.timeout(400),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrec"
ROWS = 50


def request_of(num_devices: int = 2, **fields: Any) -> PlanRequest:
    """Return three small tables."""
    members = [
        builders.table(name, num_embeddings=ROWS, embedding_dim=columns, pooling_factor=pooling)
        for name, columns, pooling in (("user", 64, 1.0), ("item", 32, 20.0), ("country", 8, 1.0))
    ]
    return builders.request(*members, num_devices=num_devices, **fields)


def cut(name: str, *shards: tuple[int, int]) -> TablePlacement:
    """Return a table in column shards (device, columns), one behind the other."""
    offsets = [sum(width for _, width in shards[:position]) for position in range(len(shards))]
    return TablePlacement(
        name=name,
        sharding_type=ShardingType.COLUMN_WISE if len(shards) > 1 else ShardingType.TABLE_WISE,
        shards=tuple(
            Shard(device=device, num_rows=ROWS, column_offset=offset, num_columns=width)
            for (device, width), offset in zip(shards, offsets, strict=True)
        ),
    )


def by_hand(tables: Sequence[TablePlacement], request: PlanRequest | None = None) -> Plan:
    """Return the plan document of these shards."""
    request = request or request_of()
    return imported_plan(tables, request, bundle=ExactCosts(request.topology.device))


def searched(request: PlanRequest) -> Plan:
    """Return the plan that the search finds."""
    return search(request, bundle=ExactCosts(request.topology.device))


def torchrec_form(plan: GivenPlan) -> Any:
    """Return a plan in TorchRec's types."""
    from neuroshard_trainer.sharding.plan_adapter import sharding_plan

    return sharding_plan(plan, module_path="tables")


def priced(sharding_plan: Any, request: PlanRequest) -> Plan:
    """Return the plan document of a plan in TorchRec's types."""
    return by_hand(placements(sharding_plan, request), request)


UNEVEN = (cut("user", (0, 44), (1, 20)), cut("item", (1, 32)), cut("country", (0, 8)))
REPEATED = (cut("user", (1, 16), (0, 20), (1, 28)), cut("item", (0, 12), (0, 20)), cut("country", (1, 8)))


@pytest.mark.parametrize("tables", [UNEVEN, REPEATED], ids=["uneven widths", "repeated ranks"])
def test_a_plan_comes_back_as_it_went(tables: Sequence[TablePlacement]) -> None:
    """Shards, their order and their costs survive the way to TorchRec's types and back."""
    plan = by_hand(tables, request_of(algorithm=Algorithm.TORCHREC))

    back = priced(torchrec_form(plan), plan.request)

    assert back == plan


def test_a_searched_plan_comes_back_with_its_costs() -> None:
    """What differs is the search's own statistics alone."""
    plan = searched(request_of(4, constraints=Constraints(sharding_types=BY_COLUMNS)))

    back = priced(torchrec_form(plan), plan.request)

    assert back.model_copy(update={"search": plan.search}) == plan


def test_every_family_comes_back_with_and_without_a_price() -> None:
    """Copies and the joined names of a node's tables survive the way and back; the bound is below the price."""
    request = request_of(topology=builders.topology(4, num_nodes=2))
    request = request.model_copy(update={"algorithm": Algorithm.TORCHREC})
    user, item, country = request.tables.tables
    nodes = request.topology
    for tables in (
        (by_rows(user, nodes), everywhere(item, nodes), cut("country", (3, 8))),
        (grid(user, nodes, (1, 40), (0, 24)), cut("item", (0, 12), (2, 20)), by_rows(country, nodes)),
        (on_node(user, 1, nodes), on_node(item, 0, nodes), cut("country", (2, 8))),
    ):
        plan = plan_without_price(tables, request)

        back = placements(torchrec_form(plan), request)

        assert back == plan.tables
        found = priced(torchrec_form(plan), request)
        assert found.tables == plan.tables
        assert 0 < found.lower_bound_ms < found.predicted.total_ms


def test_host_memory_comes_back_with_its_price() -> None:
    """Kernel, size of the cache, time on the link, and bytes of both memories."""
    nodes = builders.topology(4, num_nodes=2, host_memory=builders.host_memory())
    request = request_of(topology=nodes).model_copy(update={"algorithm": Algorithm.TORCHREC})
    user, item, _ = request.tables.tables
    tables = (
        on_host(by_rows(user, nodes), cache_load_factor=0.5),
        on_host(cut("item", (0, 12), (2, 20))),
        cut("country", (3, 8)),
    )
    plan = plan_without_price(tables, request)

    found = priced(torchrec_form(plan), request)

    assert found.tables == plan.tables
    assert all(each.cache_bytes > 0 for each in found.memory)
    assert sum(each.host_bytes for each in found.memory) == 4 * sum(
        each.num_embeddings * each.embedding_dim for each in (user, item)
    )
    assert [cost.host_link_ms > 0 for cost in found.predicted.devices] == [True] * 4
    assert 0 < found.lower_bound_ms < found.predicted.total_ms


def broken(**fields: Any) -> Any:
    """Return TorchRec's form of a plan with some fields of the first table replaced."""
    from dataclasses import replace

    sharding_plan = torchrec_form(by_hand(UNEVEN))
    (tables,) = sharding_plan.plan.values()
    tables["user"] = replace(tables["user"], **fields)
    return sharding_plan


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sharding_type": "row_columns"}, "user.sharding_type: is 'row_columns'"),
        ({"compute_kernel": "key_value"}, "user.compute_kernel: is 'key_value'"),
        ({"compute_kernel": "fused_uvm"}, r"tables\[0\].kernel: is fused_uvm, and the topology has no host_memory"),
        ({"sharding_spec": None}, "user.sharding_spec: is missing"),
    ],
    ids=["unknown", "key-value store", "host memory", "no spec"],
)
def test_what_cannot_be_scored_is_refused(fields: dict[str, Any], expected: str) -> None:
    """An import never guesses a cost."""
    request = request_of()

    with pytest.raises(PlanError, match=expected):
        priced(broken(**fields), request)


def test_a_plan_of_other_tables_is_refused() -> None:
    """Tables that the request does not have, or lacks, are named."""
    sharding_plan = torchrec_form(by_hand(UNEVEN))
    (tables,) = sharding_plan.plan.values()
    tables["cities"] = tables.pop("country")
    request = request_of()

    with pytest.raises(PlanError, match=r"no table 'cities'.*'country' of the request is missing"):
        priced(sharding_plan, request)


def test_a_plan_against_the_constraints_is_refused() -> None:
    """An imported plan has to keep to the request as any other."""
    request = request_of(constraints=Constraints(max_shards_per_table=1))

    with pytest.raises(PlanError, match="'user' has 2 shards, the constraints allow 1"):
        priced(torchrec_form(by_hand(UNEVEN)), request)

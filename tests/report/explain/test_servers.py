"""Explanations of plans with embedding servers: parts that sum to the price, and what is of the devices alone."""

import re
from dataclasses import replace

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.servers import ServerPolicy, ServerPool
from neuroshard_api.documents.topology import Link
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_report.explain.difference import plan_difference
from neuroshard_report.explain.plan import explain_plan
from neuroshard_report.explain.served_table import explain_served_table
from neuroshard_report.explain.table import explain_table
from neuroshard_report.html.page import render_html
from neuroshard_report.summary import summarize
from neuroshard_report.terminal.explanation import render_plan_explanation, render_table_explanation
from rich.console import Console
from support import builders
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns

GPU = builders.device_type()
COSTS = ExactCosts(GPU)
SMALL = builders.device_type(memory_bytes=4 * builders.GIB)
LINK = Link(bandwidth_bytes_per_second=100e9 / 8, latency_seconds=3e-5)
TABLES = (
    builders.table("history", num_embeddings=10_000_000, embedding_dim=64),
    builders.table("item", num_embeddings=50_000, embedding_dim=32, pooling_factor=20.0),
    builders.table("country", num_embeddings=200, embedding_dim=16),
)


@pytest.fixture(scope="module")
def planned() -> Plan:
    """A plan with its first table on two servers of two processes."""
    pool = ServerPool(count=2, processes=2, memory_bytes=16 * builders.GIB, cores=64, link=LINK, tables=("history",))
    return search(builders.request(*TABLES, topology=builders.topology(2, device=GPU), servers=pool), bundle=COSTS)


def test_the_parts_with_the_wait_for_servers_are_the_price(planned: Plan) -> None:
    """Of the step, and of what is above the bound."""
    found = explain_plan(planned, bundle=COSTS)

    assert sum(term.ms for term in found.terms) == pytest.approx(planned.predicted.total_ms)
    assert any(term.name == "wait for servers" for term in found.terms)
    above = planned.predicted.total_ms - planned.lower_bound_ms
    assert sum(part.ms for part in found.gap_parts) == pytest.approx(above)


def test_what_lookahead_hides_is_told(planned: Plan) -> None:
    """Before it is asked for, as what would help, and then next to the step."""
    pool = planned.request.servers
    assert pool is not None
    asked = planned.request.model_copy(update={"servers": pool.model_copy(update={"lookahead": 1})})
    ahead = search(asked, bundle=COSTS)

    assert any(each.startswith("lookahead would leave") for each in explain_plan(planned, bundle=COSTS).helps)
    found = explain_plan(ahead, bundle=COSTS)
    assert re.search(r"servers take .* ms, of which lookahead hides .* behind the step before$", found.step or "")
    assert not any("lookahead" in each for each in found.helps)
    assert "of it during the step before" in summarize(ahead).on_servers


def test_lookahead_that_gains_nothing_is_told_and_not_suggested() -> None:
    """Trainers on CPUs exchange on the core that computes, and the step of this model is short."""
    cpu = builders.device_type(name="cpu-test")
    pool = ServerPool(count=2, memory_bytes=5 * builders.GIB, tables=("history",))
    asked = builders.request(
        *TABLES,
        topology=builders.topology(2, device=cpu),
        batch_size_per_device=256,
        pipeline=Pipeline.NONE,
        servers=pool,
    )
    ahead = asked.model_copy(update={"servers": pool.model_copy(update={"lookahead": 1})})
    costs = ExactCosts(cpu)

    assert not any("lookahead" in each for each in explain_plan(search(asked, bundle=costs), bundle=costs).helps)
    found = explain_plan(search(ahead, bundle=costs), bundle=costs)
    assert "it gains nothing, for a step without it takes no longer" in (found.step or "")


def test_what_could_help_has_no_heading_where_nothing_does(planned: Plan) -> None:
    """With lookahead that hides all that servers take, for example."""
    found = explain_plan(planned, bundle=COSTS)
    shown = []
    for helps in (("more servers would help",), ()):
        console = Console(width=300, record=True)
        console.print(render_plan_explanation(replace(found, helps=helps, levers=())))
        shown.append("could help" in console.export_text())

    assert shown == [True, False]


def test_servers_that_no_table_needs_have_a_reason(planned: Plan) -> None:
    """One sentence, by the policy."""
    pool = planned.request.servers
    assert pool is not None
    for policy, reason in ((ServerPolicy.IF_NEEDED, "all tables fit without them"), (ServerPolicy.AUTO, "no tables")):
        free = pool.model_copy(update={"policy": policy, "tables": ()})
        found = search(planned.request.model_copy(update={"servers": free}), bundle=COSTS)
        assert summarize(found).on_servers.startswith(f"no embedding server is used, since {reason}")


def test_a_table_on_devices_is_explained_next_to_those_on_devices(planned: Plan) -> None:
    """Its number among the tables on devices is another one than in the request."""
    assert explain_table(planned, "item", bundle=COSTS).together_with == ()


@pytest.mark.parametrize("lookahead", [None, 1])
def test_a_table_on_servers_is_explained_next_to_the_devices(planned: Plan, lookahead: int | None) -> None:
    """With its part of the servers' time, and the price of the plan that has it on the devices."""
    pool = planned.request.servers
    assert pool is not None
    asked = planned.request.model_copy(update={"servers": pool.model_copy(update={"lookahead": lookahead})})
    both = search(
        asked.model_copy(update={"servers": asked.servers.model_copy(update={"tables": ("history", "country")})}),  # type: ignore[union-attr] # it has
        bundle=COSTS,
    )
    assert both.servers is not None

    found = explain_served_table(both, "country", bundle=COSTS)

    assert (found.is_named, found.obstacle) == (True, None)
    best = found.next_best
    assert best is not None
    width = 16 // len(best.devices)
    near = (*both.tables, by_columns(TABLES[2], *((device, width) for device in best.devices)))
    (far,) = (each for each in both.servers.tables if each.name == "history")
    moved = imported_plan(near, asked, bundle=COSTS, served=(far,))
    assert best.total_ms == pytest.approx(moved.predicted.total_ms)
    assert sum(shard.num_columns for shard in found.shards) == 16
    assert "since the request names it there (servers.tables)" in found.verdict


def test_a_table_that_fits_no_device_is_explained_with_what_lacks() -> None:
    """Its obstacle is that of a device, and no other place is better."""
    large = builders.table("large", num_embeddings=40_000_000, embedding_dim=64)
    pool = ServerPool(count=2, memory_bytes=64 * builders.GIB, cores=64, link=LINK, policy=ServerPolicy.IF_NEEDED)
    asked = builders.request(large, *TABLES[1:], topology=builders.topology(2, device=SMALL), servers=pool)
    found = explain_served_table(search(asked, bundle=ExactCosts(SMALL)), "large", bundle=ExactCosts(SMALL))

    assert found.next_best is None
    assert "in the memory of the devices it has no place: the device lacks" in found.verdict
    console = Console(width=300, record=True)
    console.print(render_table_explanation(found))
    assert "embedding server 1" in console.export_text()


def test_each_process_of_a_server_has_a_line(planned: Plan) -> None:
    """With lookups, bytes, time, and memory, on the page too."""
    lines = summarize(planned).servers

    assert [each.name for each in lines] == ["server 0.0", "server 0.1", "server 1.0", "server 1.1"]
    assert all(each.lookups_per_sample == 1.0 and each.exchanged_bytes > 0 for each in lines if each.num_shards)
    assert "server 1.1" in render_html(planned)


def test_a_table_that_comes_back_from_servers_moves(planned: Plan) -> None:
    """Processes of servers are numbered after the devices."""
    asked = planned.request.model_copy(update={"servers": None})
    found = plan_difference(planned, search(asked, bundle=COSTS))

    moved = next(each for each in found.tables if each.name == "history")
    assert min(shard.device for shard in moved.before.shards) >= 2
    assert moved.moved_bytes >= 10_000_000 * 64 * 4

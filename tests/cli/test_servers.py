"""Embedding servers as an option: what it assumes, where it is refused, and the commands that take a plan with them."""

import json
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import ServedTables
from neuroshard_api.documents.servers import ServerPolicy, ServerPool
from neuroshard_api.process.failures import CommandError
from neuroshard_cli.local.run_plan import summary
from neuroshard_dlrm.servers import with_server_pool
from support import builders
from support.cli.searches import quick

GIB = builders.GIB
CPU = builders.device_type(name="cpu-test", memory_bytes=4 * GIB)


def pool_of(text: str, **fields: Any) -> ServerPool:
    """Return the servers of an option for two devices."""
    found = with_server_pool(builders.request(builders.table("a"), builders.table("b"), **fields), text).servers
    assert found is not None
    return found


def test_a_number_and_a_size_are_enough() -> None:
    """Cores, link, and processes are assumed, and tables are chosen only where nothing else fits."""
    found = pool_of("2x192GiB", topology=builders.topology(2))

    assert (found.count, found.memory_bytes, found.cores, found.processes) == (2, 192 * GIB, 64, 1)
    assert found.link is not None
    assert found.link.bandwidth_bytes_per_second == 12.5e9
    assert found.policy is ServerPolicy.IF_NEEDED


def test_all_that_is_assumed_may_be_given() -> None:
    """In any order, after the size."""
    found = pool_of("1x8Gi,policy=auto,gbps=400,processes=2,cores=32,lookahead=1", topology=builders.topology(2))

    assert (found.cores, found.processes, found.policy, found.lookahead) == (32, 2, ServerPolicy.AUTO, 1)
    assert found.link is not None
    assert found.link.bandwidth_bytes_per_second == 50e9


def test_servers_of_trainers_on_one_machine_s_cpus_are_there_too() -> None:
    """They exchange and compute as the trainers' processes do."""
    found = pool_of("1x8GiB", topology=builders.topology(2, device=CPU))

    assert found.link is None
    assert found.cores is None


@pytest.mark.parametrize(
    "text",
    [
        "2",
        "2x",
        "2x192GB",
        "2x192GiB,speed=3",
        "2x192GiB,cores",
        "2x8GiB,policy=never!",
        "2x8GiB,lookahead=no",
        "2x..GiB",
        "2x8PiB",
        "2x8GiB,gbps=nan",
        "2x8GiB,gbps=inf",
        "2x8GiB,gbps=-5",
        "2x8GiB,gbps=0",
    ],
)
def test_other_words_are_refused_with_the_form(text: str) -> None:
    """The hint has the whole form."""
    with pytest.raises(CommandError, match=r"^--servers: .*hint: write 2x192GiB"):
        pool_of(text, topology=builders.topology(2))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """Arguments of a set that fits no two devices, with servers."""
    tables = tmp_path_factory.mktemp("served") / "tables.csv"
    rows = ["name,num_embeddings,embedding_dim,pooling_factor", "history,1000000000,64,1", "item,100000,64,10"]
    tables.write_text("\n".join(rows))
    return (tables, *quick(2), "--servers", "2x300GiB,gbps=400")


def test_a_plan_and_a_comparison_have_servers(neuroshard: Any, asked: tuple[Any, ...]) -> None:
    """A set that fits no two devices is planned with servers, and baselines, which have none, find no plan."""
    planned = neuroshard("plan", *asked)
    compared = neuroshard("compare", *asked, "--json")

    assert planned.code == compared.code == 0, planned.err + compared.err
    assert "history on embedding servers, 2 x 300 GiB" in planned.out
    assert "server 1.0" in planned.out
    first, *others = json.loads(compared.out)
    assert first["predicted"]["devices"][0]["server_ms"] > 0
    assert others
    assert all("problem" in each for each in others)


def test_a_plan_with_servers_is_scored_as_it_was_searched(
    neuroshard: Any, asked: tuple[Any, ...], tmp_path: Path
) -> None:
    """With its price or without, and other commands take what it writes."""
    out, bare, scored = (tmp_path / f"{name}.json" for name in ("plan", "bare", "scored"))
    assert neuroshard("plan", *asked, "--out", out).code == 0
    plan = Plan.read(out)
    bare.write_text(
        GivenPlan(
            algorithm=plan.algorithm,
            tables=plan.tables,
            servers=ServedTables(tables=plan.servers.tables),  # type: ignore[union-attr] # it has
            request=plan.request,
        ).to_json()
    )

    for given in (out, bare):
        found = neuroshard("score", given, "--out", scored)
        assert (found.code, found.err.count("error")) == (0, 0), found.err
        again = Plan.read(scored)
        assert (again.predicted, again.servers, again.step) == (plan.predicted, plan.servers, plan.step)
    for command in (("explain", scored, "--json"), ("validate", scored), ("diff", out, scored), ("report", scored)):
        assert neuroshard(*command).code == 0


def test_servers_that_no_table_needs_are_told_of(neuroshard: Any, tmp_path: Path) -> None:
    """By a plan, and by a run's line about it."""
    tables, out = tmp_path / "tables.csv", tmp_path / "plan.json"
    tables.write_text("name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,1\nitem,1000,16,1")

    planned = neuroshard("plan", tables, *quick(2), "--servers", "2x8GiB", "--out", out)

    sentence = "no embedding server is used, since all tables fit without them (policy if_needed)"
    assert sentence in " ".join(planned.out.split())
    assert summary(Plan.read(out)).endswith(f"; {sentence}")

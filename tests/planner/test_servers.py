"""Plans with embedding servers: which requests there are, where tables are, and what a plan without them is."""

import re
from typing import Any

import pytest
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.plan import Plan, any_plan
from neuroshard_api.documents.request import Constraints, Pipeline, PlanRequest, TableConstraints
from neuroshard_api.documents.servers import ServerPolicy, ServerPool, untrained_servers
from neuroshard_api.documents.tables import Optimizer, Pooling
from neuroshard_api.documents.topology import HostLink, HostMemory, Link
from neuroshard_api.sharding.kinds import ComputeKernel
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_costs.servers import exchange_work_ms, hidden_ahead_ms
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.checks import plan_problems
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_planner.server_remedy import with_servers_priced
from pydantic import ValidationError
from support import builders
from support.planner.exact_costs import ExactCosts

CPU = builders.device_type(name="cpu-test", memory_bytes=4 * builders.GIB)
TABLES = (
    builders.table("history", num_embeddings=10_000_000, embedding_dim=64),
    builders.table("item", num_embeddings=50_000, embedding_dim=32, pooling_factor=20.0),
    builders.table("country", num_embeddings=200, embedding_dim=16),
)


def request(*names: str, memory_gib: int = 5, count: int = 2, **fields: Any) -> PlanRequest:
    """Return a request for two processes on CPUs and servers, on which these tables are."""
    fields = {"topology": builders.topology(2, device=CPU), "pipeline": Pipeline.NONE, **fields}
    pool = ServerPool(count=count, memory_bytes=memory_gib * builders.GIB, tables=names)
    return builders.request(*fields.pop("tables", TABLES), **fields, servers=pool)


def planned(asked: PlanRequest) -> Plan:
    """Return the plan of a request."""
    return search(asked, bundle=ExactCosts(CPU))


def test_tables_are_on_servers_and_all_others_as_if_there_were_none() -> None:
    """The named table is cut over both servers, for neither holds it; the devices have the plan of the other tables."""
    found = planned(request("history"))

    assert found.servers is not None
    (placed,) = found.servers.tables
    assert placed.name == "history"
    assert {shard.device for shard in placed.shards} == {0, 1}
    without = found.of_devices
    assert found.tables == without.tables
    assert [table.name for table in found.tables] == ["item", "country"]
    assert [table.name for table in found.trained_tables.tables] == ["history", "item", "country"]
    assert plan_problems(found) == []
    assert any_plan(found.model_dump(mode="json", exclude_none=True)) == found


def test_servers_that_are_too_small_are_named() -> None:
    """The message has the servers' memory, and the remedy is theirs."""
    with pytest.raises(InfeasibleError, match=r"embedding servers do not fit.*'history'.*hint: give more servers"):
        planned(request("history", count=1))


def test_a_plan_whose_shards_exceed_a_server_is_refused() -> None:
    """Validation counts the memory of servers as it does that of devices."""
    found = planned(request("history"))
    small = found.request.model_copy(update={"servers": ServerPool(count=2, memory_bytes=2**31, tables=("history",))})

    problems = plan_problems(found.model_copy(update={"request": small}))

    assert any(problem.startswith("servers.memory[0]: needs") for problem in problems)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown table": ({"names": ("user",)}, "servers.tables: there is no table 'user'"),
    "all tables": ({"names": ("history", "item", "country")}, "servers.tables: names all tables"),
    "an optimizer without a kernel on CPUs": ({"optimizer": Optimizer.ADAM}, "optimizer"),
    "no table": ({"names": ()}, "servers.policy: is never, and no table is named"),
    "many lookups": (
        {"tables": (builders.table("history", pooling_factor=9.0), *TABLES[1:])},
        "servers.tables: have 4.5 lookups per sample and server, and a server answers at most 4",
    ),
    "a table of many lookups": (
        {"tables": (builders.table("history", pooling_factor=7.0), *TABLES[1:])},
        "servers.tables: 'history' has 7 lookups per sample",
    ),
    "groups of devices": ({"replication": ReplicationChoices()}, "replication: does not go with servers"),
    "narrow types": (
        {"wire": WireTypes(forward=WireType.FP16, backward=WireType.FP16)},
        "wire: does not go with servers",
    ),
    "a sequence": (
        {"tables": (builders.table("history", pooling=Pooling.NONE), *TABLES[1:])},
        "servers.tables: 'history' has pooling NONE",
    ),
    "a constraint of its table": (
        {"constraints": Constraints(tables={"history": TableConstraints(max_shards=2)})},
        "constraints.tables: 'history' is on servers",
    ),
    "a co-located table": (
        {"constraints": Constraints(colocate=(("history", "item"),))},
        "servers.tables: 'history' is co-located",
    ),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_what_servers_do_not_go_with_is_refused(fields: dict[str, Any], message: str) -> None:
    """A request has servers with settings that are trained, or is refused with a sentence."""
    names = fields.pop("names", ("history",))

    with pytest.raises(ValidationError, match=re.escape(message)):
        request(*names, **fields)


UNTRAINED: dict[str, tuple[dict[str, Any], str]] = {
    "a pipeline": ({"pipeline": Pipeline.SPARSE_DIST}, "pipeline: is sparse-dist"),
}


@pytest.mark.parametrize(("fields", "message"), UNTRAINED.values(), ids=UNTRAINED)
def test_what_is_priced_and_not_trained_has_a_sentence(fields: dict[str, Any], message: str) -> None:
    """A plan has a price with servers that the trainer does not have, and a job with them is refused."""
    assert (untrained_servers(request("history", **fields)) or "").startswith(message)


def test_a_slow_link_is_refused() -> None:
    """Below 25 Gb/s servers take longer than anything that they could replace."""
    link = Link(bandwidth_bytes_per_second=10e9 / 8, latency_seconds=3e-5)
    pool = ServerPool(count=1, memory_bytes=builders.GIB, link=link, tables=("history",))

    with pytest.raises(ValidationError, match=r"servers: have a link of 10 Gb/s, and need 25"):
        builders.request(*TABLES, topology=builders.topology(2), servers=pool)


def test_a_slow_link_between_nodes_is_refused_for_gpus() -> None:
    """Servers without a link of their own have that between nodes."""
    slow = Link(bandwidth_bytes_per_second=10e9 / 8, latency_seconds=3e-5)
    gpus = builders.topology(2, device=GPU).model_copy(update={"inter_node": slow})
    pool = ServerPool(count=1, memory_bytes=builders.GIB, tables=("history",))

    with pytest.raises(ValidationError, match=r"servers: have a link of 10 Gb/s, and need 25"):
        builders.request(*TABLES, topology=gpus, servers=pool)


GPU = builders.device_type(memory_bytes=4 * builders.GIB)
FAST = Link(bandwidth_bytes_per_second=400e9 / 8, latency_seconds=1e-5)


def on_gpus(policy: ServerPolicy, *, rows: int = 40_000_000, link: Link = FAST, **fields: Any) -> PlanRequest:
    """Return a request for two GPUs and two servers of 64 cores, which may have tables by a policy."""
    names = ("history",) if policy is ServerPolicy.NEVER else ()
    pool = ServerPool(count=2, memory_bytes=16 * builders.GIB, cores=64, link=link, policy=policy, tables=names)
    tables = (builders.table("history", num_embeddings=rows, embedding_dim=64), *TABLES[1:])
    fields = {"topology": builders.topology(2, device=GPU), "servers": pool, **fields}
    return builders.request(*tables, **fields)


def found_on(asked: PlanRequest, **options: Any) -> Plan:
    """Return the plan of a request for GPUs."""
    return search(asked, bundle=ExactCosts(asked.topology.device), **options)


def names_on_servers(plan: Plan) -> list[str]:
    """Return the tables of a plan that are on servers."""
    return [] if plan.servers is None else [table.name for table in plan.servers.tables]


def test_the_predicted_total_has_the_wait_for_servers() -> None:
    """Ids are exposed; of the rest only what takes longer than the devices' own pass adds to the step."""
    found = planned(request("history"))

    assert found.servers is not None
    assert found.servers.predicted is not None
    device = found.predicted.devices[0]
    assert device.server_ms == found.servers.predicted.total_ms
    ids_ms = found.servers.predicted.devices[0].input_communication_ms
    assert ids_ms <= device.server_exposed_ms <= device.server_ms
    assert found.predicted.total_ms == pytest.approx(max(cost.total_ms for cost in found.predicted.devices))
    assert found.step is not None
    assert found.step.embedding_ms == found.predicted.total_ms
    assert all((each.total_ms or found.predicted.total_ms) >= found.predicted.total_ms for each in found.baselines)
    assert plan_problems(found) == []


def test_lookahead_hides_servers_behind_a_whole_step() -> None:
    """The step takes the longer of what servers do and of all else with the exchange; the plan says what is hidden."""
    asked = request("history")
    pool = asked.servers
    assert pool is not None
    asked_ahead = asked.model_copy(update={"servers": pool.model_copy(update={"lookahead": 1})})
    exact, ahead = planned(asked), planned(asked_ahead)

    assert exact.servers is not None
    assert exact.servers.predicted is not None
    assert exact.step is not None
    assert ahead.step is not None
    servers_ms = exact.servers.predicted.total_ms
    alone_ms = exact.step.total_ms - exact.predicted.devices[0].server_exposed_ms
    work_ms = exchange_work_ms(exact.servers.predicted, asked.topology, ExactCosts(CPU))
    hidden_ms = hidden_ahead_ms(servers_ms, alone_ms, work_ms=work_ms)
    assert ahead.step.total_ms == pytest.approx(servers_ms + alone_ms - hidden_ms)
    assert 0 < alone_ms < ahead.step.total_ms
    assert ahead.predicted.devices[0].server_hidden_ms == pytest.approx(hidden_ms)
    assert ahead.memory[0].used_bytes > exact.memory[0].used_bytes  # the next batch
    assert plan_problems(ahead) == []
    assert any_plan(ahead.model_dump(mode="json", exclude_none=True)) == ahead
    again = search(asked_ahead, bundle=ExactCosts(CPU), incumbent=_incumbent(ahead)).incumbent
    assert again is not None
    assert again.total_ms == pytest.approx(ahead.predicted.total_ms)


def test_a_price_that_is_not_the_servers_is_refused() -> None:
    """Validation holds what devices wait for against what servers take."""
    found = planned(request("history"))
    devices = tuple(each.model_copy(update={"server_ms": 1e3}) for each in found.predicted.devices)
    changed = found.model_copy(update={"predicted": found.predicted.model_copy(update={"devices": devices})})

    assert any(each.startswith("predicted.devices[0].server_ms: is 1000") for each in plan_problems(changed))


def test_tables_go_to_servers_only_where_nothing_else_fits() -> None:
    """With the policy if_needed, a table that fits on the devices stays there, and a larger one leaves."""
    fits, too_large = (on_gpus(ServerPolicy.IF_NEEDED, rows=rows) for rows in (10_000_000, 40_000_000))

    assert names_on_servers(found_on(fits)) == []
    found = found_on(too_large)
    assert names_on_servers(found) == ["history"]
    assert found.request == too_large
    assert plan_problems(found) == []
    assert any_plan(found.model_dump(mode="json", exclude_none=True)) == found
    assert found.choices is not None
    assert found.choices[-1].before_ms is None


def test_a_set_that_fits_no_devices_is_planned_by_the_policy_auto() -> None:
    """That no table is on servers was tried first, and is not tried again."""
    found = found_on(on_gpus(ServerPolicy.AUTO, rows=40_000_000))

    assert "history" in names_on_servers(found)
    assert plan_problems(found) == []


def test_host_memory_that_is_faster_keeps_tables_from_servers() -> None:
    """With the policy auto, the plan is never dearer than the one that may use host memory alone."""
    link = HostLink(to_device_bytes_per_second=6e10, from_device_bytes_per_second=6e10)
    memory = HostMemory(bytes_per_node=64 * builders.GIB, link=link)
    topology = builders.topology(2, device=GPU).model_copy(update={"host_memory": memory})
    constraints = Constraints(compute_kernels=tuple(ComputeKernel))
    slow = Link(bandwidth_bytes_per_second=25e9 / 8, latency_seconds=1e-4)
    asked = on_gpus(ServerPolicy.AUTO, link=slow, topology=topology, constraints=constraints)
    without = found_on(asked.model_copy(update={"servers": None}))

    found = found_on(asked)

    assert names_on_servers(found) == []
    assert found.predicted.total_ms == without.predicted.total_ms
    assert found.tables == without.tables
    assert found.choices is not None
    assert all(each.refusal for each in found.choices[-1].alternatives)


def test_a_replan_counts_moves_to_servers() -> None:
    """A table that leaves devices for servers moves whole, and one that stays there does not move."""
    before = found_on(on_gpus(ServerPolicy.IF_NEEDED, rows=10_000_000))
    pool = on_gpus(ServerPolicy.IF_NEEDED, rows=10_000_000).servers
    assert pool is not None
    pinned = pool.model_copy(update={"tables": ("history",)})
    asked = before.request.model_copy(update={"servers": pinned})

    moved = found_on(asked, incumbent=Incumbent(tables=before.tables)).incumbent
    stays = found_on(asked, incumbent=_incumbent(found_on(asked))).incumbent

    assert moved is not None
    assert moved.total_ms == pytest.approx(before.predicted.total_ms)
    assert [each.name for each in moved.moved] == ["history"]
    assert moved.moved_bytes == 10_000_000 * (64 * 4 + 2 * 4)  # two shards, each with a state for each row
    assert stays is not None
    assert stays.moved == ()


def _incumbent(plan: Plan) -> Incumbent:
    assert plan.servers is not None
    return Incumbent(tables=plan.tables, served=plan.servers.tables)


def test_a_refusal_prices_the_servers_that_would_do() -> None:
    """The remedy is of a plan that was found: a number of servers, and what devices wait for them."""
    asked = on_gpus(ServerPolicy.NEVER, rows=40_000_000, servers=None)
    costs = ExactCosts(asked.topology.device)
    with pytest.raises(InfeasibleError) as refused:
        search(asked, bundle=costs)

    found = str(with_servers_priced(refused.value, asked, bundle=costs))

    assert re.search(r"; or 1 embedding server of 192 GiB: \+\d+\.\d ms \(--servers\)$", found)


def test_servers_that_cannot_serve_are_no_remedy() -> None:
    """Adam has no kernel on CPUs."""
    asked = on_gpus(ServerPolicy.NEVER, rows=40_000_000, servers=None, optimizer=Optimizer.ADAM)
    costs = ExactCosts(asked.topology.device)
    with pytest.raises(InfeasibleError) as refused:
        search(asked, bundle=costs)

    assert with_servers_priced(refused.value, asked, bundle=costs) is refused.value


def test_tables_that_fit_nowhere_and_that_servers_refuse_have_the_reason() -> None:
    """Adam has no kernel on CPUs, and the largest table does not fit on the devices."""
    tables = (builders.table("history", num_embeddings=10**9, embedding_dim=64), builders.table("item"))
    pool = ServerPool(count=2, memory_bytes=900 * builders.GIB, policy=ServerPolicy.AUTO)
    asked = builders.request(*tables, topology=builders.topology(2), optimizer=Optimizer.ADAM, servers=pool)

    with pytest.raises(
        InfeasibleError, match="no further table may be on servers: 'history' would be trained on a CPU"
    ):
        search(asked, bundle=ExactCosts(asked.topology.device))

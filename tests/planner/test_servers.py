"""Plans with embedding servers: which requests there are, where tables are, and what a plan without them is."""

import re
from typing import Any

import pytest
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.plan import Plan, any_plan
from neuroshard_api.documents.request import Constraints, Pipeline, PlanRequest, TableConstraints
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.tables import Optimizer, Pooling
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.checks import plan_problems
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
    "GPUs": ({"topology": builders.topology(2)}, "servers: serve trainers on CPUs"),
    "several nodes": (
        {"topology": builders.topology(2, num_nodes=2, device=CPU)},
        "servers: serve the trainers of one",
    ),
    "a pipeline": ({"pipeline": Pipeline.SPARSE_DIST}, "pipeline: is sparse-dist"),
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


def test_a_request_of_a_job_is_refused_in_the_jobs_names() -> None:
    """The user wrote spec.experimental.pipeline."""
    with pytest.raises(ValidationError, match=r"spec\.experimental\.pipeline: is sparse-dist"):
        request("history", pipeline=Pipeline.SPARSE_DIST, settings_of="job")

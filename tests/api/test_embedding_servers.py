"""Embedding servers of a job next to those of a plan that was given."""

from typing import Any

import pytest
from neuroshard_api.documents.servers import ServerPolicy, ServerPool
from neuroshard_api.job.workers import EmbeddingServers, ServersPolicy, other_servers

GIB = 2**30
JOB: dict[str, Any] = {"replicas": 2, "resources": {"limits": {"memory": "8Gi"}}, "tables": ("user",)}
PLAN: dict[str, Any] = {"count": 2, "memory_bytes": 8 * GIB, "tables": ("user",)}
DIFFERENT: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, str]] = {
    "the plan has none": (None, JOB, "the plan has no tables on embedding servers, the job has 1 there"),
    "the job has none": (PLAN, None, "the plan has tables on 2 processes of embedding servers, the job has none"),
    "another number": (PLAN | {"count": 3}, JOB, "the plan is for 3 embedding servers, the job has 2"),
    "other processes": (
        PLAN | {"processes": 4},
        JOB,
        "the plan is for 4 processes on each embedding server, the job has 1",
    ),
    "no lookahead": (
        PLAN,
        JOB | {"lookahead": 1},
        "the plan is for 0 steps of lookahead on embedding servers, the job has 1",
    ),
    "less memory": (
        PLAN | {"memory_bytes": 16 * GIB},
        JOB,
        "the plan is for embedding servers of 16 GiB of memory, the job's have 8 GiB",
    ),
    "another table": (
        PLAN | {"tables": ("item",)},
        JOB,
        "the job has table 'user' on embedding servers, the plan's request does not name it",
    ),
}
ALIKE: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]] = {
    "the same": (PLAN, JOB),
    "more memory": (PLAN, JOB | {"resources": {"limits": {"memory": "16Gi"}}}),
    "none at all": (None, None),
    "lookahead": (PLAN | {"lookahead": 1}, JOB | {"lookahead": 1}),
    "none was needed": (None, {**JOB, "tables": (), "policy": ServersPolicy.IF_NEEDED}),
    "the plan chose": (
        PLAN | {"tables": (), "policy": ServerPolicy.AUTO},
        {**JOB, "tables": (), "policy": ServersPolicy.AUTO},
    ),
}


def _found(plan: dict[str, Any] | None, job: dict[str, Any] | None) -> str | None:
    return other_servers(
        None if plan is None else ServerPool(**plan), None if job is None else EmbeddingServers.model_validate(job)
    )


@pytest.mark.parametrize(("plan", "job", "problem"), DIFFERENT.values(), ids=DIFFERENT)
def test_other_servers_have_a_sentence(plan: dict[str, Any] | None, job: dict[str, Any] | None, problem: str) -> None:
    """It says what both have."""
    assert _found(plan, job) == problem


@pytest.mark.parametrize(("plan", "job"), ALIKE.values(), ids=ALIKE)
def test_servers_that_can_hold_the_plan_have_none(plan: dict[str, Any] | None, job: dict[str, Any] | None) -> None:
    """They may have more memory than the plan needs, and none of them if the plan has no table there."""
    assert _found(plan, job) is None

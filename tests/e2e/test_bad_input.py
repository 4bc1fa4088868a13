"""Job files that no one should get far with: refused by the API server, or ended by the operator with a sentence."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import Release
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.images import PLANNER
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace
from support.jobs import broken_rules, broken_schemas

pytestmark = [pytest.mark.e2e]
FROM_MAP = {"configMapKeyRef": {"name": "input", "key": "tables.json"}}
MODEL_FROM_MAP = {"embeddingTablesFrom": FROM_MAP, "batchSizePerDevice": 256}
PLAN_REF = {"name": "input", "key": "plan.json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bad:
    """A job that the API server takes, with the ConfigMap `input` next to it, and how the operator must end it."""

    name: str
    reason: str
    words: str
    data: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)


ENDED = (
    Bad(
        name="tables-no-json",
        reason="InvalidInput",
        words="tables.json",
        data={"tables.json": "{"},
        spec={"model": MODEL_FROM_MAP},
    ),
    Bad(
        name="tables-another-document",
        reason="InvalidInput",
        words="schema_version",
        data={"tables.json": '{"schema_version": "plan/v3"}'},
        spec={"model": MODEL_FROM_MAP},
    ),
    Bad(
        name="tables-wrong-value",
        reason="InvalidInput",
        words="num_embeddings",
        data={
            "tables.json": json.dumps(
                {
                    "schema_version": "table-set/v1",
                    "tables": [{"name": "a", "num_embeddings": -1, "embedding_dim": 4, "pooling_factor": 1}],
                }
            )
        },
        spec={"model": MODEL_FROM_MAP},
    ),
    Bad(
        name="plan-no-json",
        reason="PlanUnusable",
        words="plan.json",
        data={"plan.json": "x"},
        spec={"planRef": PLAN_REF},
    ),
    Bad(
        name="plan-another-version",
        reason="PlanUnusable",
        words="plan/v",
        data={"plan.json": '{"schema_version": "plan/v99"}'},
        spec={"planRef": PLAN_REF},
    ),
    Bad(
        name="volume-without-a-name",
        reason="InvalidPodTemplate",
        words="spec.podTemplate",
        spec={"podTemplate": {"spec": {"volumes": [{"name": "Not Valid", "emptyDir": {}}]}}},
    ),
    Bad(
        name="toleration-of-nonsense",
        reason="InvalidPodTemplate",
        words="spec.podTemplate",
        spec={"podTemplate": {"spec": {"tolerations": [{"operator": "Sometimes"}]}}},
    ),
    Bad(
        name="limit-below-request",
        reason="InvalidPodTemplate",
        words="spec.podTemplate",
        spec={
            "trainer": {
                "image": PLANNER.tag,
                "command": ["true"],
                "resourcesPerNode": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}},
            }
        },
    ),
)


def names_of(cases: Any) -> list[str]:
    """Return the names of cases, for their ids."""
    return [case.name for case in cases]


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("bad", ENDED, ids=names_of(ENDED))
def test_what_only_the_operator_can_refuse_ends_with_a_reason_and_a_sentence(namespace: Namespace, bad: Bad) -> None:
    """And launches nothing."""
    namespace.kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "input"}, "data": bad.data},
        jobs.script_job("bad", "true", **bad.spec),
    )
    seen = jobs.wait_for_stage(namespace.kubectl, "bad", "Failed")

    assert seen["reason"] == bad.reason, seen["message"]
    assert bad.words in seen["message"]
    assert not jobs.children(namespace.kubectl, "bad", "pods", "worker")


@pytest.mark.usefixtures("operator")
def test_a_job_waits_for_input_that_is_not_there_yet(namespace: Namespace) -> None:
    """`kubectl apply` of a folder makes things in any order."""
    namespace.kubectl.apply(jobs.script_job("early", "true", model=MODEL_FROM_MAP))
    jobs.wait_for(namespace.kubectl, "early", lambda seen: seen.get("reason") == "InputMissing", "waits for its tables")
    tables = [{"name": "a", "num_embeddings": 1000, "embedding_dim": 32, "pooling_factor": 1}]
    text = json.dumps({"schema_version": "table-set/v1", "tables": tables})
    namespace.kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "input"}, "data": {"tables.json": text}}
    )
    jobs.wait_for_stage(namespace.kubectl, "early", "Succeeded")


@pytest.mark.usefixtures("operator")
def test_an_object_of_someone_else_is_never_taken_over(namespace: Namespace) -> None:
    """A Service that has the name which the job's would have."""
    theirs: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "bad-workers"},
        "spec": {"ports": [{"port": 1}]},
    }
    namespace.kubectl.apply(theirs, jobs.script_job("bad", "true"))
    seen = jobs.wait_for_stage(namespace.kubectl, "bad", "Failed")

    assert seen["reason"] == "NameConflict"
    assert "Service bad-workers exists and does not belong to this job" in seen["message"]
    assert "ownerReferences" not in namespace.kubectl.get("service", "bad-workers")["metadata"]


HOSTILE = "$(touch /tmp/x); `id` {{ .Values }} ${HOME} %s \\n ' \" ;&|"


@pytest.mark.usefixtures("operator")
def test_words_that_look_like_templates_reach_the_workers_as_they_are(namespace: Namespace) -> None:
    """No shell and no template reads arguments and environment on the way."""
    trainer = {
        "image": PLANNER.tag,
        "command": ["python3", "-c", "import os, sys; sys.exit(sys.argv[1] != os.environ['ODD'])"],
        "args": [HOSTILE],
        "env": [{"name": "ODD", "value": HOSTILE}],
    }
    namespace.kubectl.apply(jobs.script_job("odd", "", trainer=trainer))

    jobs.wait_for_stage(namespace.kubectl, "odd", "Succeeded")


REFUSED = (*broken_rules.RULES, *broken_schemas.SCHEMA)


def test_the_api_server_refuses_broken_job_files_and_the_operator_never_sees_them(
    operator: Release, namespace: Namespace
) -> None:
    """Every one with the path of the field; the operator is neither started again nor does it stumble."""
    [pod], before = operator.pods(), operator.restarts()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    for broken in REFUSED:
        with pytest.raises(CommandError) as refusal:
            namespace.kubectl("create", "--filename=-", stdin=json.dumps(broken.data))
        assert broken.path in str(refusal.value), broken.name
    logs = operator.kubectl("logs", pod["metadata"]["name"], f"--since-time={began}")

    assert len(REFUSED) >= 40
    assert not namespace.kubectl.list(jobs.KIND)
    assert operator.restarts() == before
    assert "Traceback" not in logs

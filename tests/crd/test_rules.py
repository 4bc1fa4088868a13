"""What the API server itself refuses, in which words: each rule of the resource on a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest
from neuroshard_api.job.crd import job_schema
from neuroshard_api.job.model import ONLY_LOCAL_FILE
from support import builders
from support.jobs import broken_jobs, broken_rules, broken_schemas
from support.jobs.broken_jobs import BrokenJob
from support.jobs.stored_jobs import Jobs, refusal_of

pytestmark = pytest.mark.api_server
each_broken_rule = pytest.mark.parametrize("broken", broken_rules.RULES, ids=lambda broken: broken.name)
each_broken_schema = pytest.mark.parametrize("broken", broken_schemas.SCHEMA, ids=lambda broken: broken.name)
REFUSED = 'DLRMTrainingJob.training.neuroshard.dev "job" is invalid: '
SUSPENDED_ONLY = "{} can be changed only while the job is suspended"
CHANGES: dict[str, Any] = {
    "model": {"batchSizePerDevice": 16},
    "variants": [{"name": "a"}, {"name": "b"}],
    "profiler": {"budgetSeconds": 60},
    "planner": {"algorithm": "DimGreedy"},
    "planRef": {"name": "mine"},
    "trainer": {"numNodes": 2},
    "experimental": {"rendezvous": {"port": 30000}},
    "data": {"numSamples": 10},
    "training": {"epochs": 2},
    "checkpoint": {"keep": 1},
}


def rules_of(schema: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Give every rule of a schema."""
    yield from schema.get("x-kubernetes-validations", [])
    for field in schema.get("properties", {}).values():
        yield from rules_of(field)
    for key in schema.keys() & {"items", "additionalProperties"}:
        yield from rules_of(schema[key])


@each_broken_rule
def test_a_rule_refuses_with_its_message(jobs: Jobs, broken: BrokenJob) -> None:
    """The path, and the very words of the rule."""
    assert jobs.refusal(broken.data) == f"{REFUSED}{broken.path}: {broken.server}"


@each_broken_schema
def test_the_schema_refuses_with_path_and_limit(jobs: Jobs, broken: BrokenJob) -> None:
    """The path, what was found, and what is right."""
    separator = "" if broken.server.startswith("[") else ": "

    assert f"{broken.path}{separator}{broken.server}" in jobs.refusal(broken.data)


@pytest.mark.parametrize(("name", "message"), [pytest.param(*case[1:], id=case[0]) for case in broken_jobs.NAMES])
def test_a_name_that_children_could_not_bear_is_refused(jobs: Jobs, name: str, message: str) -> None:
    """Host names of pods are made from it."""
    assert f"Invalid value: {message}" in jobs.refusal(builders.job_data(name))


@pytest.mark.parametrize(("spec", "path"), [pytest.param(*case[1:], id=case[0]) for case in broken_jobs.UNKNOWN])
def test_an_unknown_field_is_refused(jobs: Jobs, spec: dict[str, Any], path: str) -> None:
    """As kubectl asks for: a misspelt field is not silently dropped."""
    assert jobs.refusal(builders.job_data(**spec)).endswith(f'strict decoding error: unknown field "{path}"')


@pytest.mark.parametrize("field", CHANGES)
def test_what_the_plan_depends_on_changes_only_while_suspended(jobs: Jobs, field: str) -> None:
    """A running job stays what was planned; a suspended one is planned again."""
    name = f"change-{field.lower()}"
    jobs.create(builders.job_data(name))
    refusal = jobs.change_refusal(name, {"spec": {field: CHANGES[field]}})
    jobs.change(name, {"spec": {"suspend": True}})

    assert refusal.endswith(f"spec: Invalid value: {SUSPENDED_ONLY.format(field)}")
    assert jobs.change_refusal(name, {"spec": {field: CHANGES[field]}}) == ""


def test_kueue_may_change_and_resume_in_one_update(jobs: Jobs) -> None:
    """Its admission sets placement and suspend together."""
    jobs.create(builders.job_data("admitted", suspend=True))

    assert jobs.change_refusal("admitted", {"spec": {"suspend": False, "trainer": {"numNodes": 2}}}) == ""


def test_the_manager_never_changes(jobs: Jobs) -> None:
    """Two operators must not both think that a job is theirs."""
    jobs.create(builders.job_data("managed"))

    refusal = jobs.change_refusal("managed", {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}})

    assert refusal.endswith('spec.managedBy: Invalid value: "kueue.x-k8s.io/multikueue": managedBy cannot be changed')


def test_what_does_not_concern_the_plan_may_change(jobs: Jobs) -> None:
    """Deadlines and restarts are not part of what was planned."""
    jobs.create(builders.job_data("policies"))
    change = {"spec": {"runPolicy": {"activeDeadlineSeconds": 60}, "failurePolicy": {"maxRestarts": 9}}}

    assert jobs.change_refusal("policies", change) == ""


def test_every_rule_is_tried_here() -> None:
    """A new rule comes with a job that breaks it."""
    said = {case.server.rsplit(": ", 1)[-1] for case in broken_rules.RULES} | {case[2] for case in broken_jobs.NAMES}
    said |= {SUSPENDED_ONLY.format(field) for field in CHANGES} | {"managedBy cannot be changed", ONLY_LOCAL_FILE}
    rules = {rule["message"] for rule in rules_of(job_schema())}

    assert {rule for rule in rules if not any(rule.endswith(each) for each in said)} == set()


def test_tables_in_a_file_of_one_machine_are_refused(jobs: Jobs) -> None:
    """Pods do not have the file; `neuroshard run` reads it."""
    refusal = jobs.refusal(builders.job_data(model={"embeddingTablesFrom": {"file": "tables.json"}}))

    assert refusal == f"{REFUSED}spec.model.embeddingTablesFrom: Invalid value: {ONLY_LOCAL_FILE}"


def test_a_job_beyond_the_limit_of_objects_is_refused(jobs: Jobs) -> None:
    """Etcd holds no object above 1.5 MiB."""
    huge = builders.job_data("huge", trainer={"command": ["x" * 8192] * 128, "args": ["x" * 8192] * 72})

    assert refusal_of(lambda: jobs.create(huge)) == "etcdserver: request is too large"

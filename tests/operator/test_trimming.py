"""Kubernetes objects as the watch brings them, cut down."""

from typing import Any

import pytest
from neuroshard_api.documents.config_map import pack_files
from neuroshard_decisions import names
from neuroshard_decisions.observed.results import PlanResult, ProfileSummary, ReportSummary, Unreadable
from neuroshard_operator.observed import parsing
from support import builders
from support.operator.operator_world import profile_files


def body(kind: str = "Pod", *, role: str = "worker", **parts: Any) -> dict[str, Any]:
    """Return an object of a job."""
    labels = {names.ROLE_LABEL: role, names.ATTEMPT_LABEL: "3", "unrelated": "x"}
    owner = {"uid": "job-uid", "controller": True}
    metadata = {"name": "it", "namespace": "ns", "uid": "u", "labels": labels, "ownerReferences": [owner]}
    return {"kind": kind, "metadata": metadata, **parts}


def filled(role: str, files: dict[str, bytes]) -> dict[str, Any]:
    """Return a ConfigMap of a role with these files."""
    packed = pack_files(files)
    return body("ConfigMap", role=role, data=dict(packed.data), binaryData=dict(packed.binary_data))


def terminated(name: str, code: int, at: str) -> dict[str, Any]:
    """Return a container's status that has ended."""
    return {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at, "message": name}}}


def test_only_our_labels_are_kept() -> None:
    """Memory grows with what is kept of each object."""
    assert parsing.pod(body(spec={}, status={})).meta.labels == {names.ROLE_LABEL: "worker", names.ATTEMPT_LABEL: "3"}


def test_the_container_that_failed_first_is_the_pods_end() -> None:
    """A sidecar that is stopped after it is not a cause."""
    statuses = [terminated("late", 1, "2026-01-01T00:00:09Z"), terminated("first", 7, "2026-01-01T00:00:01Z")]
    ended = parsing.pod(body(spec={}, status={"phase": "Failed", "containerStatuses": statuses})).termination

    assert ended is not None
    assert (ended.container, ended.exit_code) == ("first", 7)


def test_a_pod_that_was_evicted_before_it_ran_has_an_end_too() -> None:
    """Its own status says why."""
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    ended = parsing.pod(body(spec={}, status=status)).termination

    assert ended is not None
    assert (ended.exit_code, ended.reason) == (None, "Evicted")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
                ]
            },
            "Unschedulable: no GPU",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}
                ]
            },
            "container c: ImagePullBackOff: m",
        ),
        ({"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({}, ""),
    ],
    ids=["no node", "no image", "just starting", "nothing known"],
)
def test_what_keeps_a_pod_from_starting_is_told(status: dict[str, Any], said: str) -> None:
    """What passes by itself is not a problem."""
    assert parsing.pod(body(spec={}, status=status)).waiting == said


def test_a_job_that_is_bound_to_fail_counts_as_failed() -> None:
    """Its last pods may take minutes to go."""
    conditions = [{"type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy", "message": "m"}]
    outcome = parsing.job(body("Job", spec={}, status={"conditions": conditions})).outcome

    assert outcome is not None
    assert not outcome.succeeded


def test_an_empty_result_says_nothing_yet() -> None:
    """The operator makes it, the pod fills it."""
    assert parsing.config_map(body("ConfigMap", role="planner")).document is None


def test_results_are_read_for_what_they_mean() -> None:
    """A plan, a profile, a report: only what decisions and status need is kept."""
    plan = parsing.config_map_with_data(filled("plan", {"plan.json": builders.plan().to_json().encode()}))
    assert isinstance(plan.document, PlanResult)
    assert plan.document.world_size == 4
    assert plan.content_hash == plan.document.hash
    assert isinstance(parsing.config_map_with_data(filled("profile", profile_files())).document, ProfileSummary)
    report = {"step-report.json": builders.step_report().to_json().encode()}
    assert isinstance(parsing.config_map_with_data(filled("worker", report)).document, ReportSummary)


@pytest.mark.parametrize(
    ("role", "files", "said"),
    [
        ("planner", {"plan.json": b"{"}, "not complete JSON"),
        ("planner", {"other.json": b"{}"}, "has no plan.json"),
        ("profiler", {"manifest.json": b"{}"}, "has no weights.safetensors, hardware.json"),
        ("profiler", {**profile_files(), "weights.safetensors": b"x"}, "damaged or edited"),
        ("profiler", {**profile_files(), "hardware.json": b"[]"}, "must hold a mapping"),
        ("worker", {"step-report.json": b"null"}, "must hold a mapping"),
    ],
)
def test_a_result_that_cannot_be_used_says_why(role: str, files: dict[str, bytes], said: str) -> None:
    """Nothing that a pod publishes makes the operator raise."""
    document = parsing.config_map_with_data(filled(role, files)).document

    assert isinstance(document, Unreadable)
    assert said in document.problem


def test_data_that_is_not_base64_is_no_plan() -> None:
    """Someone wrote it by hand."""
    broken = {**body("ConfigMap", role="plan"), "binaryData": {"plan.json.gz": "%%%"}}

    assert parsing.config_map_with_data(broken).content_hash == ""
    assert isinstance(parsing.config_map_with_data(broken).document, Unreadable)

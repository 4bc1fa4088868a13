"""Containers next to that of a stage, as log shippers and injected proxies: what the stage's own did decides."""

from typing import Any

import pytest
from neuroshard_decisions import names
from neuroshard_operator.observed import parsing
from support.operator.operator_process import Story
from support.operator.operator_world import stamp

HINT = "hint: make it an initContainer with restartPolicy Always"


def end_beside(story: Story, pod: dict[str, Any], code: int, *, beside_code: int | None = None) -> None:
    """Let the stage's container of a pod end, while another one runs on or has ended with a code."""
    name = pod["spec"]["containers"][0]["name"]
    ended = {"exitCode": code, "reason": "Error", "message": f"exit {code}", "finishedAt": stamp(story.world.now)}
    beside = {"running": {}} if beside_code is None else {"terminated": {**ended, "exitCode": beside_code}}
    pod["status"] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": name, "state": {"terminated": ended}},
            {"name": "log-shipper", "state": beside},
        ],
    }
    story.world.touch(pod)


def test_a_trainer_that_fails_next_to_a_container_that_runs_on_is_restarted() -> None:
    """The pod lives, and its Job would never end."""
    story = Story().running()
    end_beside(story, story.pods(names.WORKER)[0], 1)
    story.settle()
    story.bury()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
    assert story.status["lastFailure"]["containerName"] == "trainer"
    [told] = [each["message"] for each in story.world.events if each["reason"] == "WorkersRestarted"]
    assert "log-shipper" in told
    assert HINT in told


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_trainers_that_all_succeed_succeed_and_free_their_devices(policy: str) -> None:
    """Whatever cleanPodPolicy says of pods that have ended: these have not, and hold the devices."""
    story = Story(runPolicy={"cleanPodPolicy": policy}).running()
    first, second = story.pods(names.WORKER)
    end_beside(story, first, 0)
    story.settle()
    story.later(10)
    assert story.seen[0] == "Running"
    assert "log-shipper" in story.status["message"]
    end_beside(story, second, 0)
    story.settle()
    story.bury()

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert HINT in story.status["message"]
    assert story.pods(names.WORKER) == []


def test_a_container_that_fails_next_to_a_trainer_that_runs_changes_nothing() -> None:
    """It is not a part of the training while the pod lives."""
    story = Story().running()
    pod = story.pods(names.WORKER)[0]
    pod["status"]["containerStatuses"] = [
        {"name": "trainer", "state": {"running": {}}},
        {"name": "log-shipper", "state": {"terminated": {"exitCode": 3}}},
    ]
    story.world.touch(pod)
    story.settle()

    assert story.seen == ("Running", "AllWorkersReady")


def test_trainers_succeed_though_a_container_next_to_them_fails_their_job() -> None:
    """The Job of Kubernetes fails with any container."""
    story = Story().running()
    for pod in story.pods(names.WORKER):
        end_beside(story, pod, 0, beside_code=3)
        pod["status"]["phase"] = "Failed"
    story.settle()

    assert story.seen == ("Succeeded", "TrainingCompleted")


def test_a_planner_whose_proxy_runs_on_is_done() -> None:
    """Its Job goes, and so do those of profilers, which would hold the workers' devices."""
    story = Story()
    for role in (names.PROFILER, names.PLANNER):
        for pod in story.pods(role):
            story.world.work(pod)
            end_beside(story, pod, 0)
        story.settle()
    story.bury()
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.jobs(names.PROFILER) == story.jobs(names.PLANNER) == []


def test_a_planner_that_fails_next_to_a_proxy_ends_the_job() -> None:
    """Its Job makes no other pod while this one lives; the message names what keeps it."""
    story = Story().do(names.PROFILER)
    end_beside(story, story.pods(names.PLANNER)[0], 1)
    story.settle()

    assert story.seen == ("Failed", "PlanningFailed")
    assert "log-shipper" in story.status["message"]


def test_the_trainer_is_blamed_before_what_failed_next_to_it() -> None:
    """Also where the other container failed first."""
    pod = parsing.pod(
        {
            "metadata": {"name": "it", "namespace": "ns", "labels": {names.ROLE_LABEL: names.WORKER}},
            "status": {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "proxy", "state": {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z"}}},
                    {"name": "trainer", "state": {"terminated": {"exitCode": 2, "finishedAt": "2026-01-01T00:01:00Z"}}},
                ],
            },
        }
    )

    assert pod.termination is not None
    assert (pod.termination.container, pod.exit_code) == ("trainer", 2)


def containers(story: Story, role: str) -> list[dict[str, Any]]:
    """Return all containers of a role's pods."""
    specs = [job["spec"]["template"]["spec"] for job in story.world.of_kind("Job", role)]
    return [each for spec in specs for each in (*spec.get("initContainers", []), *spec["containers"])]


@pytest.mark.parametrize("own", [{}, {"command": ["train"]}], ids=["our trainer", "a trainer of one's own"])
def test_every_container_has_limits_where_the_trainer_has(own: dict[str, Any]) -> None:
    """A namespace with a quota on limits takes all pods as they are."""
    asked = {"limits": {"cpu": 4, "memory": "8Gi"}}
    story = Story(trainer={"numNodes": 1, "resourcesPerNode": asked, **own}).planned()
    roles = (names.PROFILER, names.PLANNER, names.WORKER)
    found = {(role, each["name"]): each["resources"]["limits"] for role in roles for each in containers(story, role)}

    assert len(found) == 4  # the dense part is counted for our trainer, and reports of another one are published
    assert all(limits.keys() >= {"cpu", "memory"} for limits in found.values()), found


def test_every_container_of_the_planners_pod_gets_what_the_job_says() -> None:
    """That with the trainer's image, which counts the dense part, included."""
    asked = {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"cpu": 3, "memory": "5Gi"}}
    found = containers(Story(experimental={"planner": {"resources": asked}}).planned(), names.PLANNER)

    assert [each["name"] for each in found] == ["dense", "planner"]
    assert {str(each["resources"]) for each in found} == {
        str({"limits": asked["limits"], "requests": asked["requests"]})
    }


def test_pods_of_profiler_and_planner_get_labels_and_annotations_of_their_own() -> None:
    """Such as the one that keeps a proxy out; those of the operator win, and the plan does not depend on them."""
    said = {"labels": {"team": "ads", names.ROLE_LABEL: "mine"}, "annotations": {"sidecar.istio.io/inject": "false"}}
    story = Story(experimental={"planner": {"podMetadata": said}, "profiler": {"podMetadata": said}}).planned()
    for role in (names.PROFILER, names.PLANNER):
        [job] = story.world.of_kind("Job", role)
        found = job["spec"]["template"]["metadata"]
        assert found["labels"]["team"] == "ads"
        assert found["labels"][names.ROLE_LABEL] == role
        assert found["annotations"]["sidecar.istio.io/inject"] == "false"

    assert Story().planned().jobs(names.PLANNER) == story.jobs(names.PLANNER)

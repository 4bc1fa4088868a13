"""One job from `kubectl apply` to Succeeded, and what a user sees on the way."""

import hashlib
from datetime import datetime, timedelta

import pytest
from e2e import jobs
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.step_report import StepReport
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("operator")]


def test_a_pod_whose_trainer_ends_while_the_sidecar_starts_ends_at_once(namespace: Namespace) -> None:
    """The sidecar gets SIGTERM before its interpreter has handlers, as the first process of its container."""
    kubectl = namespace.kubectl
    kubectl.apply(jobs.script_job("brief", "true", podTemplate={"spec": {"terminationGracePeriodSeconds": 300}}))
    jobs.wait_for_stage(kubectl, "brief", "Succeeded", within_s=120)
    [pod] = jobs.children(kubectl, "brief", "pods", "worker")
    [trainer], [sidecar] = (pod["status"][f"{kind}Statuses"] for kind in ("container", "initContainer"))
    ends = [datetime.fromisoformat(each["state"]["terminated"]["finishedAt"]) for each in (trainer, sidecar)]

    assert sidecar["state"]["terminated"]["exitCode"] == 0
    assert ends[1] - ends[0] < timedelta(seconds=30)


def test_an_applied_job_is_profiled_planned_and_trained_under_its_plan(namespace: Namespace) -> None:
    """Simulated profile, real plan, real torchrun workers on two nodes, measured next to predicted cost."""
    kubectl = namespace.kubectl
    kubectl.apply(jobs.training_job("shop", data={"numSamples": 100_000}))  # it is seen training
    jobs.wait_for_stage(kubectl, "shop", "Running", "Succeeded")
    nodes = {pod["spec"]["nodeName"] for pod in jobs.children(kubectl, "shop", "pods", "worker")}
    seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded")

    assert len(nodes) == 2
    assert jobs.conditions(seen)["Profiled"][0] == "True"
    assert jobs.conditions(seen)["Planned"] == ("True", "PlanWritten")
    assert jobs.conditions(seen)["Succeeded"] == ("True", "TrainingCompleted")
    assert {each["name"]: each["state"] for each in seen["stages"]} == dict.fromkeys(
        ("Profiling", "Planning", "Launching", "Running"), "Succeeded"
    )
    assert datetime.fromisoformat(seen["startTime"]) < datetime.fromisoformat(seen["completionTime"])
    assert seen["hardware"]["gpuProduct"] == "NVIDIA-H200"
    assert seen["cost"]["predicted"]["source"].startswith("simulated:")
    assert seen["cost"]["measured"]["source"].startswith("cpu:")
    assert seen["cost"]["measured"]["totalMicroseconds"] > 0
    assert "errorPercent" not in seen["cost"]  # a CPU is measured, an H200 was predicted for
    assert seen.get("restarts", 0) == 0
    assert {"Profiled", "Planned", "Running", "Succeeded"} <= set(jobs.events(kubectl, "shop"))

    plan_map = kubectl.get("configmap", seen["plan"]["configMapRef"]["name"])
    text = jobs.files_in(kubectl, plan_map["metadata"]["name"])["plan.json"]
    plan = Plan.from_json(text)
    [result] = [
        files["step-report.json"]
        for name in jobs.names(jobs.children(kubectl, "shop", "configmaps", "worker"))
        if "step-report.json" in (files := jobs.files_in(kubectl, name))
    ]
    report = StepReport.from_json(result)

    assert plan_map["immutable"] is True
    assert plan.request.topology.num_devices == len(report.ranks) == 2
    assert report.plan_sha256 == hashlib.sha256(text).hexdigest()
    assert seen["trainerStatus"]["progressPercentage"] == 100
    assert float({each["name"]: each["value"] for each in seen["trainerStatus"]["metrics"]}["auc"]) > 0.5

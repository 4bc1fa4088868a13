"""One job from `neuroshard submit` to Succeeded, and what its user sees, without kubectl and with it."""

import hashlib
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from e2e import jobs
from e2e.client import neuroshard
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.step_report import StepReport
from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]
GRACE_S = 300
"""A sidecar that does not hear of its pod's end takes as long."""


def test_a_pod_whose_trainer_ends_while_the_sidecar_starts_ends_at_once(namespace: Namespace) -> None:
    """The sidecar gets SIGTERM before its interpreter has handlers, as the first process of its container."""
    kubectl = namespace.kubectl
    kubectl.apply(jobs.script_job("brief", "true", podTemplate={"spec": {"terminationGracePeriodSeconds": GRACE_S}}))
    jobs.wait_for_stage(kubectl, "brief", "Succeeded")
    [pod] = jobs.children(kubectl, "brief", "pods", "worker")
    [trainer], [sidecar] = (pod["status"][f"{kind}Statuses"] for kind in ("container", "initContainer"))
    ends = [datetime.fromisoformat(each["state"]["terminated"]["finishedAt"]) for each in (trainer, sidecar)]

    assert sidecar["state"]["terminated"]["exitCode"] == 0
    assert ends[1] - ends[0] < timedelta(seconds=GRACE_S / 2)


def test_a_submitted_job_is_profiled_planned_and_trained_under_its_plan(namespace: Namespace, tmp_path: Path) -> None:
    """Simulated profile, real plan, real torchrun workers on two nodes, measured next to predicted cost.

    In a namespace whose quota asks every container for limits.
    """
    kubectl, file = namespace.kubectl, tmp_path / "job.json"
    kubectl.apply(jobs.QUOTA)  # the container that counts the dense part has limits, too
    job = jobs.training_job("shop", data={"numSamples": 100_000})
    limits = {"cpu": 2, "memory": "4Gi", RESOURCE: 1}
    job["spec"]["trainer"]["resourcesPerNode"] = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": limits}
    file.write_text(json.dumps(job))
    submitted = neuroshard(namespace, "submit", str(file))
    watched = neuroshard(namespace, "status", "shop", "--watch")
    shown = neuroshard(namespace, "status", "shop")
    both = neuroshard(namespace, "logs", "shop")
    logs = [neuroshard(namespace, "logs", "shop", "--stage", "running", "--worker", index) for index in ("0", "1")]
    profiler = neuroshard(namespace, "logs", "shop", "--stage", "profiling")
    pods = jobs.workers(kubectl, "shop")
    seen = jobs.status(kubectl, "shop")

    assert f"shop created in namespace {namespace.name}" in submitted
    assert "Succeeded" in watched
    assert "Succeeded" in shown
    assert both == "".join(logs)
    assert f"hold the shards of plan {seen['plan']['hash'].removeprefix('sha256:')[:12]}" in logs[0]
    assert profiler.strip()

    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2
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
    jobs.wait_for_events(kubectl, "shop", "Profiled", "Planned", "Running", "Succeeded")

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

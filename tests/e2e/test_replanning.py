"""Jobs whose inputs drift in mid-training: noticed on real workers, planned for, and trained on under the new plan."""

import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import Release
from e2e.volumes import newest_step, shared_volume, skip_without_shared_folder
from neuroshard_api.documents.plan import Plan
from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION
from neuroshard_cluster.cgroups import MOUNT
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

from benchmarks import replanned_run

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.usefixtures("operator")]

NUM_PROCS = 2
BATCH_SIZE = 64
DRIFT_STEP = 400
"""After the 250 steps that the reference takes."""
EVERY_STEPS = 200
TABLES = [{"name": f"t{index}", "numEmbeddings": 20_000, "embeddingDim": 64} for index in range(4)]
DRIFT = [
    {"atSample": DRIFT_STEP * BATCH_SIZE * NUM_PROCS, "feature": name, "poolingFactorTimes": 60}
    for name in ("t0", "t2")
]
"""Tables that the bundled models put on one device: a plan for the changed inputs separates them, and moves shards."""
NOTICED_WITHIN_S = 600.0
CONTROL_S = 300.0
KILLS_SEED = 17
WORK_POOLING = 150
"""Lookups per sample of a job in which they take a good part of the step: a slow node is found by them."""
STEPS = ("running", "asked for", "judged", "approved", "taken")
"""Of a re-planning, after which the operator may be killed."""
STEPS_BY_ITSELF = ("running", "asked for", "taken")
"""The same in mode Auto, which takes a candidate in the pass that judges it."""
CPU = {"requests": {"cpu": "100m", "memory": "1Gi"}}
PROFILED_WITHIN_S = 600.0
QUOTA_US, PERIOD_US = 2_000, 10_000
"""Processor time that a slowed worker has in each period, as with a CPU limit of 200m."""


def long_job(claim: str, *, pooling: int = 4, **spec: Any) -> Object:
    """Return a job that trains until it is deleted, with checkpoints."""
    data = {"numSamples": 2_000_000_000, **spec.pop("data", {})}
    experimental = {"data": {"readerProcesses": 0}, **spec.pop("experimental", {})}
    trainer = {
        "numNodes": NUM_PROCS,
        "numProcPerNode": 1,
        "resourcesPerNode": {"limits": {RESOURCE: 1}},
        "args": ["--device", "cpu"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],  # both nodes are on one machine
    }
    return jobs.training_job(
        "shop",
        trainer=trainer,
        model={
            "embeddingTables": [{**table, "poolingFactor": pooling} for table in TABLES],
            "batchSizePerDevice": BATCH_SIZE,
        },
        profiler=jobs.BUNDLED,
        data=data,
        checkpoint={"persistentVolumeClaim": {"claimName": claim}, "everySteps": EVERY_STEPS},
        training={"logEverySteps": 50},
        experimental=experimental,
        **spec,
    )


class Kills:
    """Kills of the operator at two of the steps of a re-planning, which a seed chooses; or none."""

    def __init__(self, release: Release, *, seed: int | None, steps: Sequence[str] = STEPS) -> None:
        self._release = release
        self.steps = [] if seed is None else random.Random(seed).sample(steps, 2)  # noqa: S311 - keeps no secret

    def after(self, step: str) -> None:
        """Kill the operator if this step was chosen."""
        if step in self.steps:
            self._release.kill()


@pytest.mark.parametrize("seed", [None, KILLS_SEED], ids=["undisturbed", "the operator is killed twice"])
def test_a_candidate_for_drifted_inputs_is_taken_once_it_is_approved(
    cluster: Cluster, operator: Release, namespace: Namespace, tmp_path: Path, seed: int | None
) -> None:
    """The workers resume from a checkpoint under the candidate; the restart counts as no failure.

    Approval makes it independent of how well bundled models of a GPU predict this CPU. Times are in the artifacts.
    """
    kubectl, folder, kills = namespace.kubectl, tmp_path / "checkpoints", Kills(operator, seed=seed)
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(long_job(claim, experimental={"syntheticDrift": DRIFT}))
        jobs.wait_for_stage(kubectl, "shop", "Running")
        kills.after("running")

        def is_asked_for(seen: Mapping[str, Any]) -> bool:
            return "candidate" in seen.get("replanning", {})

        def is_judged(seen: Mapping[str, Any]) -> bool:
            return bool(seen.get("replanning", {}).get("candidate", {}).get("planName"))

        asked = jobs.wait_for(kubectl, "shop", is_asked_for, "asks for a candidate", within_s=NOTICED_WITHIN_S)
        kills.after("asked for")
        before = jobs.wait_for(kubectl, "shop", is_judged, "has a candidate", within_s=NOTICED_WITHIN_S)
        kills.after("judged")
        candidate = before["replanning"]["candidate"]
        saved = newest_step(folder)
        annotation = f"training.neuroshard.dev/approved-plan={candidate['planName']}"
        kubectl("annotate", "--overwrite", jobs.KIND, "shop", annotation)
        kills.after("approved")

        def is_taken(seen: Mapping[str, Any]) -> bool:
            return bool(seen.get("replanning", {}).get("replans"))

        jobs.wait_for(kubectl, "shop", is_taken, "takes the candidate", within_s=NOTICED_WITHIN_S)
        kills.after("taken")

        def is_measured(seen: Mapping[str, Any]) -> bool:
            history = seen.get("replanning", {}).get("history", ())
            return bool(history) and "measuredGainPercent" in history[-1]

        after = jobs.wait_for(kubectl, "shop", is_measured, "is measured under it", within_s=NOTICED_WITHIN_S)
        eventually("training goes on", lambda: newest_step(folder) > saved)
        namespace.artifacts.mkdir(parents=True, exist_ok=True)
        facts = {"killed after": kills.steps, **after["replanning"]}
        (namespace.artifacts / "replanning.json").write_text(json.dumps(facts, indent=1))

    assert jobs.conditions(asked)["Steady"] == ("False", "InputsDrifted")
    assert after["plan"]["hash"] == candidate["hash"] != before["plan"]["hash"]
    assert (after["restartsCountTowardsMax"], after["replanning"]["replans"]) == (0, 1)
    assert [each["reason"] for each in after["replanning"]["history"]] == ["PlanWritten", "InputsDrifted"]
    jobs.wait_for_events(kubectl, "shop", "DriftDetected", "PlanReplaced")


def measured_job(name: str, *, hot: Sequence[str] = (), corrects: bool = False, **spec: Any) -> Object:
    """Return the job of `replanned_run` on CPUs of two nodes, which the operator measures; `hot` tables drift.

    `corrects`: its steps correct the cost models.
    """
    local = replanned_run.job(name, hot=hot, drifts=bool(hot))["spec"]
    data = {**local["data"], "numSamples": 2_000_000_000}
    trainer = {
        "numNodes": NUM_PROCS,
        "numProcPerNode": 1,
        "resourcesPerNode": CPU,
        "args": ["--device", "cpu"],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    }
    profiler = {"budgetSeconds": 60, **spec.pop("profiler", {})}
    parts = {each: local[each] for each in ("model", "training", "experimental")}
    pods = {"timeoutSeconds": int(PROFILED_WITHIN_S) - 10, "correctBySteps": corrects}
    parts["experimental"] = {**parts["experimental"], "profiler": pods}
    parts |= {"trainer": trainer, "profiler": profiler}
    return jobs.training_job(name, **parts, data=data, **spec)


@pytest.mark.parametrize("seed", [None, KILLS_SEED], ids=["undisturbed", "the operator is killed twice"])
def test_mode_auto_restarts_the_workers_under_a_candidate_by_itself(
    cluster: Cluster, operator: Release, namespace: Namespace, tmp_path: Path, seed: int | None
) -> None:
    """Nobody approves anything: measured models, reports, and the rule decide, and the embedding part of a step falls.

    The job is planned first, so that the tables of device 0 are the ones whose lookups grow.
    """
    skip_without_shared_folder(cluster)
    if len(cluster.nodes()) < NUM_PROCS:
        pytest.skip("two workers need two nodes; make cluster-up NODES=2")
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    kills = Kills(operator, seed=seed, steps=STEPS_BY_ITSELF)
    kubectl.apply(measured_job("first", launchPolicy="PlanOnly"))
    planned = jobs.wait_for_stage(kubectl, "first", "Succeeded", within_s=PROFILED_WITHIN_S)
    plan = Plan.from_json(jobs.files_in(kubectl, planned["plan"]["configMapRef"]["name"])["plan.json"])
    hot = [table.name for table in plan.tables if {shard.device for shard in table.shards} == {0}]
    assert 0 < len(hot) < len(plan.tables), "the plan has tables on device 0 alone, and others"
    with shared_volume(cluster, namespace, folder) as claim:
        checkpoint = {"persistentVolumeClaim": {"claimName": claim}, "everySteps": EVERY_STEPS}
        kubectl.apply(measured_job("shop", hot=hot, checkpoint=checkpoint, replanning={"mode": "Auto"}))
        before = jobs.wait_for_stage(kubectl, "shop", "Running", within_s=PROFILED_WITHIN_S)
        kills.after("running")

        def is_asked_for(seen: Mapping[str, Any]) -> bool:
            return bool(seen.get("replanning", {}).get("candidates"))

        jobs.wait_for(kubectl, "shop", is_asked_for, "asks for a candidate", within_s=NOTICED_WITHIN_S)
        kills.after("asked for")

        def is_taken(seen: Mapping[str, Any]) -> bool:
            return bool(seen.get("replanning", {}).get("replans"))

        jobs.wait_for(kubectl, "shop", is_taken, "takes the candidate by itself", within_s=NOTICED_WITHIN_S)
        saved = newest_step(folder)
        kills.after("taken")

        def is_measured(seen: Mapping[str, Any]) -> bool:
            history = seen.get("replanning", {}).get("history", ())
            return bool(history) and "measuredGainPercent" in history[-1]

        after = jobs.wait_for(kubectl, "shop", is_measured, "is measured under it", within_s=NOTICED_WITHIN_S)
        eventually("training goes on", lambda: newest_step(folder) > saved)
        annotations = kubectl.get(jobs.KIND, "shop")["metadata"].get("annotations", {})
        namespace.artifacts.mkdir(parents=True, exist_ok=True)
        facts = {"killed after": kills.steps, "hot": hot, **after["replanning"]}
        (namespace.artifacts / "replanning-auto.json").write_text(json.dumps(facts, indent=1))

    first, second = after["replanning"]["history"]
    assert APPROVED_PLAN_ANNOTATION not in annotations
    assert first["hash"] == before["plan"]["hash"] != second["hash"] == after["plan"]["hash"]
    assert (first["reason"], second["reason"]) == ("PlanWritten", "InputsDrifted")
    assert (after["restartsCountTowardsMax"], after["replanning"]["replans"]) == (0, 1)
    assert second["measuredGainPercent"] > 0
    jobs.wait_for_events(kubectl, "shop", "DriftDetected", "PlanReplaced")


def test_a_later_job_is_planned_with_the_models_that_measured_steps_corrected(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """The first job corrects its profile by steady steps; the prediction for the second is nearer to what they took."""
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    with shared_volume(cluster, namespace, folder) as claim:
        checkpoint = {"persistentVolumeClaim": {"claimName": claim}, "everySteps": EVERY_STEPS}
        kubectl.apply(measured_job("teacher", corrects=True, checkpoint=checkpoint, replanning={"mode": "Off"}))
        jobs.wait_for_stage(kubectl, "teacher", "Running", within_s=PROFILED_WITHIN_S)

        def is_corrected(seen: Mapping[str, Any]) -> bool:
            return "correction" in seen

        taught = jobs.wait_for(kubectl, "teacher", is_corrected, "corrects its models", within_s=NOTICED_WITHIN_S)
        kubectl.delete(jobs.KIND, "teacher")
        kubectl.apply(measured_job("pupil", corrects=True, launchPolicy="PlanOnly"))
        learnt = jobs.wait_for_stage(kubectl, "pupil", "Succeeded", within_s=PROFILED_WITHIN_S)
        namespace.artifacts.mkdir(parents=True, exist_ok=True)
        facts = {"teacher": taught, "pupil": learnt}
        (namespace.artifacts / "corrections.json").write_text(json.dumps(facts, indent=1))

    corrected = taught["correction"]["configMapRef"]["name"]
    jobs.wait_for_events(kubectl, "teacher", "CostModelsCorrected")
    assert learnt["profile"]["correctedBy"] == corrected
    assert learnt["profile"]["correctedErrorPercent"] == taught["correction"]["errorPercent"]
    measured = taught["cost"]["measured"]["totalMicroseconds"]
    before, after = (abs(seen["cost"]["predicted"]["totalMicroseconds"] - measured) for seen in (taught, learnt))
    assert after < before


def test_workers_leave_a_node_that_became_slow(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    """One worker gets a fifth of a core, as with a lower CPU limit; in mode Auto they start elsewhere."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("processes and cgroups of this provider's pods are not those of this machine")
    if len(cluster.nodes()) < NUM_PROCS + 1:
        pytest.skip("two workers on two nodes need a third one to move to; make cluster-up NODES=3")
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(long_job(claim, pooling=WORK_POOLING, replanning={"mode": "Auto"}))
        jobs.wait_for_stage(kubectl, "shop", "Running")
        eventually("a reference was measured", lambda: newest_step(folder) >= DRIFT_STEP, within_s=NOTICED_WITHIN_S)
        slow = jobs.workers(kubectl, "shop")["1"]
        slow_down(slow)

        def is_avoided(seen: Mapping[str, Any]) -> bool:
            return bool(seen.get("replanning", {}).get("avoidedNodes"))

        jobs.wait_for(kubectl, "shop", is_avoided, "avoids a node", within_s=NOTICED_WITHIN_S)

        def has_moved() -> Mapping[str, Object]:
            found = jobs.workers(kubectl, "shop")
            return {} if uid(slow) in map(uid, found.values()) else found

        moved = eventually(
            "both workers are on nodes",
            has_moved,
            accept=lambda pods: len(pods) == NUM_PROCS and all(each["spec"].get("nodeName") for each in pods.values()),
        )
        after = jobs.wait_for_stage(kubectl, "shop", "Running")
        saved = newest_step(folder)
        eventually("training goes on", lambda: newest_step(folder) > saved)
        namespace.artifacts.mkdir(parents=True, exist_ok=True)
        (namespace.artifacts / "replanning.json").write_text(json.dumps(after["replanning"], indent=1))

    assert [each["name"] for each in after["replanning"]["avoidedNodes"]] == [slow["spec"]["nodeName"]]
    assert slow["spec"]["nodeName"] not in {each["spec"]["nodeName"] for each in moved.values()}
    assert (after["restartsCountTowardsMax"], after["replanning"]["replans"]) == (0, 1)
    jobs.wait_for_events(kubectl, "shop", "SlowNode")


def uid(pod: Object) -> str:
    """Return a pod's identity."""
    return str(pod["metadata"]["uid"])


def slow_down(pod: Object) -> None:
    """Limit a pod's processor time by the control groups of its processes."""
    names = {uid(pod), uid(pod).replace("-", "_")}
    groups = {
        (tuple(controllers.split(",")), path)
        for process in Path("/proc").glob("[0-9]*/cgroup")
        for _, controllers, path in (line.split(":", 2) for line in lines_of(process))
        if any(name in path for name in names)
    }
    files = [file for controllers, path in groups for file in limits_of(controllers, path.lstrip("/"))]
    assert files, f"no process of pod {pod['metadata']['name']} is on this machine"
    for file, text in files:
        file.write_text(text)


def limits_of(controllers: Sequence[str], path: str) -> list[tuple[Path, str]]:
    """Return the files of a control group that limit its processor time, in either version, and what to write."""
    if "cpu" in controllers:
        group = MOUNT / "cpu" / path
        return [(group / "cpu.cfs_period_us", str(PERIOD_US)), (group / "cpu.cfs_quota_us", str(QUOTA_US))]
    unified = MOUNT / path / "cpu.max"
    return [(unified, f"{QUOTA_US} {PERIOD_US}")] if unified.exists() else []


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file of a process; none once the process has ended."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def test_a_job_whose_inputs_stay_is_not_planned_again(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    """In mode Auto, whatever else runs on the machine: no candidate, and no restart."""
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(long_job(claim, replanning={"mode": "Auto"}, experimental={"avoidSlowNodes": False}))
        jobs.wait_for_stage(kubectl, "shop", "Running")
        due = time.monotonic() + CONTROL_S
        eventually("the control run is over", time.monotonic, within_s=2 * CONTROL_S, accept=due.__lt__)
        seen = jobs.status(kubectl, "shop")

    assert seen["stage"] == "Running"
    assert "candidates" not in seen.get("replanning", {})
    assert (seen.get("restarts", 0), len(jobs.children(kubectl, "shop", "jobs", "planner"))) == (0, 1)

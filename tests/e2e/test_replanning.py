"""Jobs whose inputs drift in mid-training: noticed on real workers, planned for, and trained on under the new plan."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e import jobs
from e2e.volumes import newest_step, shared_volume
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.usefixtures("operator")]

NUM_PROCS = 2
BATCH_SIZE = 512
DRIFT_STEP = 600
"""After the 250 steps that the reference takes."""
EVERY_STEPS = 200
TABLES = [
    {"name": f"t{index}", "numEmbeddings": 100_000, "embeddingDim": 64, "poolingFactor": 10} for index in range(4)
]
DRIFT = [
    {"atSample": DRIFT_STEP * BATCH_SIZE * NUM_PROCS, "feature": name, "poolingFactorTimes": 6} for name in ("t0", "t1")
]
NOTICED_WITHIN_S = 600.0
CONTROL_S = 300.0


def long_job(claim: str, **spec: Any) -> Object:
    """Return a job that trains until it is deleted, with checkpoints."""
    data = {"numSamples": 2_000_000_000, **spec.pop("data", {})}
    return jobs.training_job(
        "shop",
        model={"embeddingTables": TABLES, "batchSizePerDevice": BATCH_SIZE},
        profiler=jobs.BUNDLED,
        data=data,
        checkpoint={"persistentVolumeClaim": {"claimName": claim}, "everySteps": EVERY_STEPS},
        training={"reportEverySteps": 50, "logEverySteps": 100},
        **spec,
    )


def test_a_candidate_for_drifted_inputs_is_taken_once_it_is_approved(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """The workers resume from a checkpoint under the candidate; the restart counts as no failure.

    Approval makes it independent of how well bundled models of a GPU predict this CPU. Times are in the artifacts.
    """
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this provider's nodes share no folder")
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(long_job(claim, data={"drift": DRIFT}))
        jobs.wait_for_stage(kubectl, "shop", "Running")

        def judged(seen: Mapping[str, Any]) -> bool:
            return bool(seen.get("replanning", {}).get("candidate", {}).get("planName"))

        before = jobs.wait_for(kubectl, "shop", judged, "has a candidate", within_s=NOTICED_WITHIN_S)
        candidate = before["replanning"]["candidate"]
        saved = newest_step(folder)
        annotation = f"training.neuroshard.dev/approved-plan={candidate['planName']}"
        kubectl("annotate", "--overwrite", jobs.KIND, "shop", annotation)

        def is_measured(seen: Mapping[str, Any]) -> bool:
            history = seen.get("replanning", {}).get("history", ())
            return bool(history) and "measuredGainPercent" in history[-1]

        after = jobs.wait_for(kubectl, "shop", is_measured, "is measured under it", within_s=NOTICED_WITHIN_S)
        eventually("training goes on", lambda: newest_step(folder) > saved, within_s=240)
        namespace.artifacts.mkdir(parents=True, exist_ok=True)
        (namespace.artifacts / "replanning.json").write_text(json.dumps(after["replanning"], indent=1))

    assert jobs.conditions(before)["Steady"] == ("False", "InputsDrifted")
    assert after["plan"]["hash"] == candidate["hash"] != before["plan"]["hash"]
    assert (after["restartsCountTowardsMax"], after["replanning"]["replans"]) == (0, 1)
    assert [each["reason"] for each in after["replanning"]["history"]] == ["PlanWritten", "InputsDrifted"]
    assert {"DriftDetected", "PlanReplaced"} <= set(jobs.events(kubectl, "shop"))


def test_a_job_whose_inputs_stay_is_not_planned_again(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> None:
    """In mode Auto, whatever else runs on the machine: no candidate, and no restart."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this provider's nodes share no folder")
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    with shared_volume(cluster, namespace, folder) as claim:
        kubectl.apply(long_job(claim, replanning={"mode": "Auto", "avoidSlowNodes": False}))
        jobs.wait_for_stage(kubectl, "shop", "Running")
        due = time.monotonic() + CONTROL_S
        eventually("the control run is over", time.monotonic, within_s=2 * CONTROL_S, accept=due.__lt__)
        seen = jobs.status(kubectl, "shop")

    assert seen["stage"] == "Running"
    assert "candidates" not in seen.get("replanning", {})
    assert (seen.get("restarts", 0), len(jobs.children(kubectl, "shop", "jobs", "planner"))) == (0, 1)

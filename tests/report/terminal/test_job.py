"""A job's status as text."""

from pathlib import Path

import pytest
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_cli.shared.output import print_text
from neuroshard_report.terminal.job import render_job
from support import builders

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "first-job.md"
T0, T1, T2, T3 = (f"2026-11-21T10:0{minutes}Z" for minutes in ("0:00", "2:03", "2:10", "2:31"))
STATUS = {
    "stage": "Running",
    "reason": "AllWorkersReady",
    "message": "2 of 2 workers are ready",
    "stages": [
        {"name": "Profiling", "state": "Succeeded", "attempts": 1, "startTime": T0, "completionTime": T1},
        {"name": "Planning", "state": "Succeeded", "attempts": 1, "startTime": T1, "completionTime": T2},
        {"name": "Launching", "state": "Succeeded", "attempts": 1, "startTime": T2, "completionTime": T3},
        {"name": "Running", "state": "Active", "attempts": 1, "startTime": T3},
    ],
    "plan": {"configMapRef": {"name": "mocked-gpus-plan-1f2e3d4c5b"}, "algorithm": "neuroshard", "worldSize": 2},
    "cost": {
        "predicted": {
            "totalMicroseconds": 126,
            "computeMicroseconds": 61,
            "forwardCommunicationMicroseconds": 33,
            "backwardCommunicationMicroseconds": 32,
            "source": "simulated:NVIDIA-H200",
        },
        "baseline": {"algorithm": "dim_greedy", "totalMicroseconds": 127},
        "measured": {
            "totalMicroseconds": 89900,
            "computeMicroseconds": 62100,
            "forwardCommunicationMicroseconds": 14000,
            "backwardCommunicationMicroseconds": 13800,
            "source": "cpu:Intel(R) Xeon(R) Processor",
        },
    },
    "warnings": [
        {
            "reason": "NoCheckpointVolume",
            "message": "checkpoints die with the pods: a failure, drain or preemption starts the training over; "
            "hint: set spec.checkpoint.persistentVolumeClaim",
            "time": T2,
        },
        {
            "reason": "OtherDevice",
            "message": "the plan is for simulated:NVIDIA-H200, and the workers run on cpu:Intel(R) Xeon(R) Processor: "
            "its costs do not hold for them; hint: keep the job's pods to one product by "
            "podTemplate.spec.nodeSelector, or plan with cost models of it",
            "time": T3,
        },
    ],
    "trainerStatus": {"progressPercentage": 45, "metrics": [{"name": "auc", "value": "0.71"}]},
}


def test_the_guide_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The sample is the text of a job on mocked GPUs: it has no error in percent between two kinds of device."""
    print_text(render_job(DLRMTrainingJob.from_data(builders.job_data("mocked-gpus") | {"status": STATUS})))

    printed = "".join(f"    {line}\n" if line else "\n" for line in capsys.readouterr().out.splitlines())
    assert printed in GUIDE.read_text(encoding="utf-8")


def test_a_batch_that_the_plan_chose_is_shown_with_its_learning_rates(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    print_text(render_job(builders.job().model_copy(update={"status": builders.status()})))

    out = capsys.readouterr().out
    assert "batch: 4,096 samples per device; learning rates embeddings 0.01, dense part 0.0005" in out


def test_further_plans_are_shown_with_promise_and_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """The candidate with its verdict, nodes that are avoided, and each plan that was trained under."""
    status = builders.status().model_dump(mode="json", exclude_none=True)
    print_text(render_job(DLRMTrainingJob.from_data(builders.job_data("smallest") | {"status": status})))
    printed = capsys.readouterr().out

    assert "candidate plan 2: CoolingDown, gain 0.300 ms a step: the last restart was 60 s ago" in printed
    assert "avoided nodes: node-2" in printed
    assert "would help: 2,048 samples per device: about 2.50 ms for 4,096 samples (-17 % per sample)" in printed
    assert "Dense part, not in the totals: 2.000 ms predicted, 2.000 ms measured." in printed  # bound by the host
    assert "plan 1 (InputsDrifted): predicted 1.50 ms, measured 1.65 ms, gain promised 20 %, measured 15 %" in printed


def test_variants_have_a_line_each_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of the trainer has the metrics of the best one."""
    metrics = {"auc": "0.8", "a/normalized_entropy": "0.9", "b/normalized_entropy": "0.7", "c/diverged_at_step": "5"}
    trainer = {"progressPercentage": 45, "metrics": [{"name": name, "value": each} for name, each in metrics.items()]}
    print_text(render_job(DLRMTrainingJob.from_data(builders.job_data() | {"status": {"trainerStatus": trainer}})))

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    begin = lines.index("trainer: 45 % done, auc 0.8")
    assert lines[begin + 1 : begin + 4] == [
        "variant b: normalized_entropy 0.7", "variant a: normalized_entropy 0.9", "variant c: diverged_at_step 5",
    ]  # fmt: skip

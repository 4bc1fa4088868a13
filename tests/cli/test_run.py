"""``neuroshard run``: the stages of a job on this machine, with the commands that pods run.

Most tests plan with the bundled (simulated) cost models and train with a small script; the last ones use everything.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.step_report import HostBoundShares, MeasuredCollective, StepReport
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_cli.local.run import LocalRun
from neuroshard_cli.main import run
from support import builders
from support.cli.local_runs import BUNDLED, TRAINER, Runs, made_plan
from support.cli.stages import PLACE, TIMES_OUT, CalledStages
from support.processes import has_ended
from support.trainer import training_builders

DRIFTING_TRAINER = f"""{TRAINER}
drift = (run_dir.parent.parent / "drift.json").read_text()
(run_dir / "drift-report.json").write_text(drift.replace("0" * 64, hashlib.sha256(plan).hexdigest()))
"""
"""Reports what ``drift.json`` says, too."""
PARTS = ("compute", "forward all-to-all", "backward all-to-all", "total")
NEUROSHARD = (sys.executable, "-c", "from neuroshard_cli.main import main; main()")


def test_a_run_ends_with_predicted_beside_measured(process_runs: Runs) -> None:
    """The costs are in the words of a job's status, each with its source."""
    result = process_runs.run("--json")

    found = json.loads(result.out)
    plan = Plan.read(process_runs.run_dir / "plan.json")
    assert result.code == ExitCode.OK
    assert found["predicted"]["totalMicroseconds"] == round(1000 * plan.predicted.total_ms)
    assert found["predicted"]["source"] == "simulated:NVIDIA-H100-80GB-HBM3"
    assert found["measured"]["totalMicroseconds"] == 5000
    assert found["errorPercent"] == round(100 * (5000 / found["predicted"]["totalMicroseconds"] - 1))
    assert json.loads((process_runs.run_dir / "result.json").read_text(encoding="utf-8")) == found


def test_the_table_at_the_end_is_for_people(runs: Runs) -> None:
    """Predicted, measured, error and the best baseline."""
    out = runs.train().out

    for word in ("predicted", "measured", "Best baseline", "simulated:NVIDIA-H100", "measured:NVIDIA-H100"):
        assert word in out
    assert "Predicted by simulated cost models" in out


def test_prediction_and_measurement_of_a_run_meet_collective_by_collective(runs: Runs) -> None:
    """The plan's price and the step report name them alike."""
    time = MeasuredCollective(kind=CollectiveKind.ALL_TO_ALL, family=Family.COLUMNS, forward_ms=1.5, backward_ms=2.5)
    ranks = tuple(builders.rank_times(rank).model_copy(update={"collectives": (time,)}) for rank in (0, 1))
    report = builders.step_report(source="measured:NVIDIA-H100-80GB-HBM3", ranks=ranks)
    (runs.folder / "report.json").write_text(report.to_json(), encoding="utf-8")

    (found,) = json.loads(runs.train("--json").out)["collectives"]

    assert (found["kind"], found["family"]) == ("all_to_all", "columns")
    assert found["measured"] == {"forwardMicroseconds": 1500, "backwardMicroseconds": 2500}
    assert found["predicted"]["forwardMicroseconds"] > 0


@pytest.mark.parametrize("plan", ["0", "f"], ids=["own", "another"])
def test_the_slow_down_that_lasts_is_named_at_the_end(runs: Runs, plan: str) -> None:
    """In one line; a drift report of another plan is not."""
    line = "since step 600 steps take 29 % longer: DeviceSlow, rank 1" if plan == "0" else None
    text = training_builders.drift_report(plan_sha256=plan * 64).to_json()
    (runs.folder / "drift.json").write_text(text, encoding="utf-8")

    out = runs.train(script=DRIFTING_TRAINER).out

    assert (f"Drift: {line}" in out) == (line is not None)
    assert json.loads((runs.run_dir / "result.json").read_text(encoding="utf-8"))["drift"] == line


def test_measured_elsewhere_is_not_compared(runs: Runs) -> None:
    """The time of one device says nothing of a prediction for another; simulated ones are distinguished."""
    (runs.folder / "report.json").write_text(builders.step_report(source="simulated:any").to_json(), encoding="utf-8")

    result = runs.train()

    assert "the two cannot be compared" in result.out
    assert json.loads((runs.run_dir / "result.json").read_text(encoding="utf-8"))["errorPercent"] is None


def test_times_that_the_host_bound_are_not_compared(runs: Runs) -> None:
    """The table has no error of these parts, and the sentence says why; no cost models are corrected by them."""
    shares = HostBoundShares(forward_compute=1.0, backward_compute=1.0)
    bound = tuple(builders.rank_times(rank, host_bound=shares) for rank in range(2))
    report = StepReport.read(runs.folder / "report.json").model_copy(update={"ranks": bound})
    (runs.folder / "report.json").write_text(report.to_json(), encoding="utf-8")

    result = runs.train()

    assert "later than the device could run them" in " ".join(result.out.split())
    found = json.loads((runs.run_dir / "result.json").read_text(encoding="utf-8"))
    assert found["errorPercent"] is None
    assert found["measured"]["hostBoundParts"] == ["Compute"]
    rows = {part: next(line for line in result.out.splitlines() if line.startswith(part)) for part in PARTS}
    assert [part for part, line in rows.items() if "%" in line] == ["forward all-to-all", "backward all-to-all"]


def test_finished_stages_are_not_repeated(runs: Runs) -> None:
    """The second run takes a moment and says the same."""
    first, second = runs.run(), runs.run()

    assert second.out == first.out
    assert len(runs.starts) == 1
    for stage in ("profile", "plan", "train"):
        assert f"{stage}: reused" in second.err


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ({"planner": {"shardingTypes": ["TableWise"]}}, {"plan", "train"}),
        ({"training": {"epochs": 2}}, {"train"}),
        ({"experimental": {"checkpoint": {"inBackground": True}}}, {"train"}),
        ({"runPolicy": {"ttlSecondsAfterFinished": 1}}, set()),
    ],
    ids=["planner", "training", "experimental", "policy"],
)
def test_a_stage_is_repeated_when_its_inputs_change(runs: Runs, change: dict[str, Any], stages: set[str]) -> None:
    """And those that depend on it, where its result is another one."""
    runs.run()
    err = runs.run(**change).err

    assert {stage for stage in ("plan", "train") if f"{stage}: reused" not in err} <= stages
    assert all(f"{stage}: reused" not in err for stage in stages - {"train"})


def test_a_plan_that_was_edited_is_made_again(runs: Runs) -> None:
    """Nobody trains under it unawares."""
    runs.run()
    before = (runs.run_dir / "plan.json").read_text(encoding="utf-8")
    (runs.run_dir / "plan.json").write_text(before.replace("neuroshard", "random", 1), encoding="utf-8")
    runs.run()

    assert (runs.run_dir / "plan.json").read_text(encoding="utf-8") == before


def test_a_training_of_another_model_starts_anew(runs: Runs) -> None:
    """What the earlier one left is moved aside, not mixed in; the difference is named with both values."""
    runs.train()
    err = runs.train(data={"numSamples": 7}).err

    assert len(runs.starts) == 1
    assert (runs.run_dir / "train.1" / "starts").exists()
    assert f"moved to {runs.run_dir / 'train.1'}: it was trained with spec.data.numSamples = null, the job has 7" in err


def test_a_training_on_another_number_of_processes_is_continued(runs: Runs) -> None:
    """With the samples of a step kept, and with others: the trainer resumes, as it does in a cluster."""
    model = builders.job_data()["spec"]["model"]
    runs.train(model={**model, "batchSizePerDevice": 64})
    for processes, batch_size in ((1, 128), (1, 32)):
        plan = made_plan(runs.folder, num_devices=processes)
        sizes = {"trainer": {"numProcPerNode": processes}, "model": {**model, "batchSizePerDevice": batch_size}}
        result = runs.run("--plan", plan, **sizes)
        assert result.code == ExitCode.OK
        assert "moved" not in result.err

    assert [line.split() for line in runs.starts] == [["2"], ["1"], ["1"]]
    assert not (runs.run_dir / "train.1").exists()


def test_workers_get_the_environment_of_the_job(runs: Runs) -> None:
    """As in a pod; what only a cluster knows is left out."""
    variables = [{"name": "GIVEN", "value": "yes"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]

    runs.train(trainer={"env": variables})

    assert runs.starts == ["2 yes"]


def test_plan_only_trains_nothing(runs: Runs) -> None:
    """What would it cost?"""
    result = runs.run(launchPolicy="PlanOnly")

    assert result.code == ExitCode.OK
    assert "predicted" in result.out
    assert "measured" not in result.out
    assert result.err.endswith("launchPolicy is PlanOnly: nothing is trained\n")
    assert not (runs.run_dir / "train").exists()


def test_a_manual_job_waits_for_approval(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run says how, and trains once the command was given; a run that resumes needs no second word."""
    turn = LocalRun.turn

    def approving(local: LocalRun) -> bool:
        is_other = turn(local)
        if local.status.reason == "WaitingForApproval":
            _approve(runs)
        return is_other

    with monkeypatch.context() as patched:
        patched.setattr(LocalRun, "turn", approving)
        first = runs.run(launchPolicy="Manual")
    again = runs.run(launchPolicy="Manual", training={"seed": 7})

    assert f"waits for approval: run `neuroshard approve {runs.run_dir}`" in first.err
    assert first.err.count("is approved") == 1
    assert "measured" in first.out
    assert "for approval:" not in again.err
    assert "measured" in again.out


def _approve(runs: Runs) -> None:
    assert run(["approve", str(runs.run_dir)]) == ExitCode.OK


def test_what_waits_for_no_approval_is_not_approved(runs: Runs) -> None:
    """A folder that is of no run is named, and so is a job that trains by itself."""
    runs.run(launchPolicy="PlanOnly")
    elsewhere, automatic = runs.neuroshard("approve", runs.folder), runs.neuroshard("approve", runs.run_dir)

    assert (elsewhere.code, automatic.code) == (ExitCode.INVALID_INPUT, ExitCode.INVALID_INPUT)
    assert "is not the folder of a run" in elsewhere.err
    assert "no plan waits for approval" in automatic.err


def test_a_fallback_plans_what_the_search_could_not(runs: Runs) -> None:
    """Here neither can: the last failure is reported, with the planner's own sentence and exit code."""
    huge = [{"name": name, "numEmbeddings": 10**11, "embeddingDim": 16} for name in ("user", "item")]
    planner = {"fallbackAlgorithm": "SizeGreedy"}

    result = runs.run(model={"embeddingTables": huge}, planner=planner)

    assert result.code == ExitCode.INFEASIBLE
    assert json.loads((runs.run_dir / "request.json").read_text(encoding="utf-8"))["algorithm"] == "size_greedy"


@pytest.mark.parametrize(("outcome", "falls_back"), [(TIMES_OUT, True), (137, True), (ExitCode.INVALID_INPUT, False)])
def test_the_fallback_plans_where_another_algorithm_can_help(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, outcome: int | str, *, falls_back: bool
) -> None:
    """After the failures that the operator falls back for; the run fails with any other one of the search."""
    monkeypatch.setattr(PLACE, CalledStages(first_planner=outcome))

    result = runs.run(planner={"fallbackAlgorithm": "DimGreedy"}, experimental={"planner": {"timeoutSeconds": 100}})

    if falls_back:
        assert result.code == ExitCode.OK, result.err
        assert Plan.read(runs.run_dir / "plan.json").algorithm == Algorithm.DIM_GREEDY
    else:
        assert result.code == outcome


@pytest.mark.parametrize(
    ("script", "code", "sentence"),
    [
        (
            "import sys; print('line 1'); sys.exit('error: data/day_0 line 7: no label')",
            ExitCode.JOB_FAILED,
            "data/day_0 line 7: no label",
        ),
        ("import sys; sys.exit(2)", ExitCode.INVALID_INPUT, "ended with exit code 2 and printed nothing"),
        ("import os; os.kill(os.getpid(), 9)", ExitCode.JOB_FAILED, "was killed by SIGKILL"),
    ],
    ids=["sentence", "silent", "killed"],
)
def test_a_failure_has_a_cause_and_the_logs_tail(runs: Runs, script: str, code: ExitCode, sentence: str) -> None:
    """One sentence, the end of the log above it, and where the rest is."""
    result = runs.train(script=script, failurePolicy={"maxRestarts": 0})

    log = runs.run_dir / "logs" / "train.log"
    shown = [f"  | {line}" for line in log.read_text(encoding="utf-8").splitlines()]
    *tail, last, hint = result.err.splitlines()
    assert result.code == code
    assert last.startswith(f"error: the stage train failed: {sentence}")
    assert last.endswith(f"(log: {log})")
    assert hint == "hint: remove the cause; the same command then resumes"
    assert tail[len(tail) - len(shown) :] == shown


def test_the_rule_that_ended_a_run_is_named(runs: Runs) -> None:
    """With the failure, whose exit code and last line are shown once."""
    rule = {"name": "nine", "action": "FailJob", "onExitCodes": {"operator": "In", "values": [9]}}
    result = runs.train(script="import sys; print('oops'); sys.exit(9)", failurePolicy={"rules": [rule]})

    (told,) = [line for line in result.err.splitlines() if line.startswith("train: ") and "nine" in line]
    assert (result.code, told.count("exit code 9"), told.count("oops")) == (ExitCode.JOB_FAILED, 1, 1)


def test_a_failed_stage_is_tried_again(runs: Runs) -> None:
    """What went before it is kept."""
    runs.run(script="import sys; sys.exit(1)", failurePolicy={"maxRestarts": 0})

    result = runs.run()

    assert result.code == ExitCode.OK
    assert "plan: reused" in result.err
    assert "train: reused" not in result.err


def test_a_stage_beyond_its_deadline_is_ended(process_runs: Runs) -> None:
    """The deadline of the job's file holds here too; the code is that of a failed stage, not of wrong input."""
    result = process_runs.run(
        experimental={"planner": {"timeoutSeconds": 1, "workBudget": 10**9}},
        model={"embeddingTables": many_tables(512)},
    )

    assert result.code == ExitCode.JOB_FAILED
    assert "the stage plan did not end within 1 s, its timeoutSeconds" in result.err


def many_tables(count: int) -> list[dict[str, Any]]:
    """Return that many tables, of sizes and widths with which a search takes seconds."""
    return [
        {"name": f"t{index}", "numEmbeddings": 1000 * (1 + index), "embeddingDim": 8 * (1 + index % 16)}
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"trainer": {"numNodes": 2}}, "spec.trainer.numNodes: is 2, this is one machine\nhint: set it to 1"),
        ({"planer": {}}, "spec.planer: is not a known key\nhint: did you mean planner"),
        ({"trainer": {"command": ["no-such-trainer"]}}, "could not be started: there is no 'no-such-trainer'"),
        ({"trainer": {"command": ["/etc/passwd"]}}, "could not be started: '/etc/passwd': Permission denied"),
        ({"trainer": {"command": ["/etc/passwd/x"]}}, "could not be started: '/etc/passwd/x': Not a directory"),
        (
            {"profiler": {"policy": "Never", "costModelRef": {"configMapName": "models"}}},
            "spec.profiler.costModelRef: names a place in a cluster\nhint: give the bundle's folder with --bundle",
        ),
        ({"profiler": BUNDLED | {"deviceType": "toaster"}}, "no built-in cost models for the device 'toaster'"),
    ],
    ids=[
        "several-nodes",
        "unknown-field",
        "no-program",
        "no-permission",
        "no-folder",
        "models-in-a-cluster",
        "unknown-device",
    ],
)
def test_a_job_that_cannot_run_here_is_refused(runs: Runs, spec: dict[str, Any], problem: str) -> None:
    """The message names the field and what to do."""
    result = runs.run(**spec)

    assert result.code in {ExitCode.INVALID_INPUT, ExitCode.UNUSABLE_BUNDLE}
    assert problem in result.err


def test_an_elastic_job_is_planned_as_it_is_on_one_node(runs: Runs) -> None:
    """With the samples of a step on all nodes, as a note reports."""
    elastic = {"elastic": {"minNodes": 1}}
    result = runs.run(launchPolicy="PlanOnly", trainer={"numNodes": 2}, experimental=elastic)

    assert result.code == 0, result.err
    assert "this machine is 1 of at most 2 nodes; 16,384 samples per device, in place of 8,192" in result.err
    assert Plan.read(runs.run_dir / "plan.json").request.batch_size_per_device == 16_384


def test_a_job_is_refused_before_it_is_profiled_where_kernels_are_missing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile would take other kernels, and the training fail after it."""
    monkeypatch.setattr("neuroshard_cli.shared.installation.absent_kernels", lambda: ["torchrec", "fbgemm-gpu"])
    result = runs.run(trainer={"command": []})

    assert result.code == ExitCode.MISSING_PACKAGE
    assert "training needs torchrec and fbgemm-gpu, not installed here\nhint: pip install --no-deps" in result.err
    assert not (runs.run_dir / "profile").exists()


def test_an_unreadable_job_file_is_named(runs: Runs) -> None:
    """A wrong path, or no YAML."""
    result = runs.neuroshard("run", "nowhere.yaml")

    assert (result.code, result.err) == (2, "error: nowhere.yaml: does not exist\nhint: check the path\n")


def test_a_port_in_use_is_named(runs: Runs) -> None:
    """The one that the job sets; else another is taken."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = runs.train(experimental={"rendezvous": {"port": port}})
        runs.train()

    assert refused.code == ExitCode.INVALID_INPUT
    assert f"rendezvous.port: {port} is in use by another program\nhint: choose another one" in refused.err
    assert len(runs.starts) == 1


@pytest.mark.processes
def test_ctrl_c_ends_everything_and_the_next_run_goes_on(runs: Runs) -> None:
    """No process is left, and the folder is as it should be."""
    waits = "import os, signal, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], "
    waits += "stdin=subprocess.PIPE, start_new_session=True); print(child.pid, flush=True); signal.pause()"
    path = runs.write(script=waits)
    log = runs.run_dir / "logs" / "train.log"
    command = [*NEUROSHARD, "run", str(path), "--run-dir", str(runs.run_dir), "--plan", str(made_plan(runs.folder))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("train:"):
                break
        child = int(first_line(log, process))
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert process.returncode == ExitCode.INTERRUPTED
    assert "interrupted; run the same command again to resume" in rest
    assert rest.endswith("error: interrupted\n")
    assert has_ended(child)
    assert runs.train().code == ExitCode.OK


def first_line(log: Path, process: "subprocess.Popen[str]") -> str:
    """Return a log's first line once it is written. Fails when the process ends before."""
    while process.poll() is None:
        if log.exists() and (text := log.read_text(encoding="utf-8")).endswith("\n"):
            return text.splitlines()[0]
        os.sched_yield()
    raise AssertionError("the run ended before its trainer began")


@pytest.mark.processes
@pytest.mark.torchrec
@pytest.mark.slow
def test_the_whole_path_runs_with_real_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neuroshard: Callable[..., Any]
) -> None:
    """Simulated profile, real search, real torchrun with TorchRec on two processes; the AUC rises above chance."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "job.yaml"
    job = builders.job_data(
        profiler={"backend": "Simulated", "deviceType": "h100-80gb", "budgetSeconds": 5},
        trainer={"numProcPerNode": 2},
        data={"numSamples": 40_000},
        training={"logEverySteps": 10, "embeddingLearningRate": "0.1"},
    )
    job["spec"]["model"] |= {"batchSizePerDevice": 256, "denseArchLayerSizes": [16], "overArchLayerSizes": [16]}
    path.write_text(yaml.safe_dump(job), encoding="utf-8")

    result = neuroshard("run", path, "--json")

    assert result.code == ExitCode.OK, result.err
    found = json.loads(result.out)
    report = StepReport.read(tmp_path / "runs" / "job" / "train" / "step-report.json")
    assert found["predicted"]["source"].startswith("simulated:")
    assert found["measured"]["source"].startswith("cpu:")
    assert {times.rank for times in report.ranks} == {0, 1}
    assert found["metrics"]["auc"] > 0.55

"""Local runs with a candidate that pays: taken without approval or not, and whichever write a kill comes before."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.documents.plan import IncumbentPlan, Plan
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.main import run
from neuroshard_decisions import names
from support import builders
from support.cli.local_runs import Runs
from support.cli.stages import PLACE, CalledStages
from support.trainer import training_builders

TABLES = [{"name": f"t{index}", "numEmbeddings": 1_000, "embeddingDim": 16, "poolingFactor": "4"} for index in range(2)]
TRAINER = """
import hashlib, os, pathlib, sys, time
run_dir = pathlib.Path(os.environ["NEUROSHARD_RUN_DIR"])
text = pathlib.Path(os.environ["NEUROSHARD_PLAN"]).read_bytes()
digest = hashlib.sha256(text).hexdigest()
(run_dir / "starts").open("a").write(digest + "\\n")
if b'"incumbent"' in text:
    sys.exit(0)
for name in ("progress.json", "step-report.json", "drift-report.json"):
    report = (run_dir.parent.parent / "reports" / name).read_text()
    (run_dir / "unfinished").write_text(report.replace("0" * 64, digest))
    (run_dir / "unfinished").replace(run_dir / name)
record = run_dir.parent / "replanning.json"
while "BetterPlanFound" not in record.read_text():
    time.sleep(0.05)
"""
"""Gives the reports of the test under the first plan, until it is stopped or the candidate is suggested; ends at once
under the other plan."""
WRITES = ("replanning.json", "plan.json", "plan.html", "state.json")
"""Files that acceptance replaces, in this order."""


class KilledError(BaseException):
    """The process ended here, as far as its files can tell."""


def spec(**fields: Any) -> dict[str, Any]:
    """Return the spec of all runs' job."""
    return {"script": TRAINER, "model": {"embeddingTables": TABLES}, "replanning": {"mode": "Auto"}, **fields}


@pytest.fixture
def drifting_runs(runs: Runs) -> Runs:
    """Runs whose trainer reports inputs that drifted."""
    reference, times = (
        tuple(builders.rank_times(rank, forward_compute_ms=ms, step_ms=ms + 10.0) for rank in (0, 1))
        for ms in (10.0, 90.0)
    )
    evidence = (Evidence(part=StepPart.COMPUTE, rank=0, reference_ms=10.0, recent_ms=90.0),)
    drifted = DriftChange(cause=SlowdownCause.INPUTS_DRIFTED, tables=("t0",), since_step=4_000, evidence=evidence)
    of_any_plan: dict[str, Any] = {"plan_sha256": "0" * 64}
    documents = {
        "progress.json": builders.progress(step=5_000, num_steps=10_000_000),
        "step-report.json": builders.step_report(**of_any_plan, ranks=times, first_step=4_900),
        "drift-report.json": training_builders.drift_report(
            **of_any_plan,
            last_step=5_000,
            reference=reference,
            recent=times,
            changes=(drifted,),
            checkpoint_ms=1.0,
            start_ms=1.0,
        ),
    }
    (runs.folder / "reports").mkdir()
    for name, document in documents.items():
        (runs.folder / "reports" / name).write_text(document.to_json(), encoding="utf-8")
    return runs


@pytest.fixture(scope="module")
def judged_next(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that is planned, and has a candidate next to its plan, with its record."""
    made = Runs(tmp_path_factory.mktemp("planned"), lambda *arguments: run([str(each) for each in arguments]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PLACE, CalledStages())
        assert made.run(**spec(launchPolicy="PlanOnly")) == ExitCode.OK
    in_force = (made.run_dir / "plan.json").read_text(encoding="utf-8")
    plan = Plan.from_json(in_force, where="plan.json")
    # The two devices are alike: the same shards on the other one have the same price, and are another placement.
    moved = tuple(
        table.model_copy(
            update={"shards": tuple(each.model_copy(update={"device": 1 - each.device}) for each in table.shards)}
        )
        for table in plan.tables
    )
    incumbent = IncumbentPlan(plan_sha256=digest_of(in_force), total_ms=9 * plan.predicted.total_ms, fits=True)
    candidate = plan.model_copy(update={"tables": moved, "incumbent": incumbent})
    (made.run_dir / "candidate.json").write_text(candidate.to_json(), encoding="utf-8")
    asked = {"number": 1, "sinceStep": 4_000, "startTime": "2026-01-01T00:00:00Z"}
    (made.run_dir / "replanning.json").write_text(json.dumps({"candidates": 1, "candidate": asked}), encoding="utf-8")
    return made.run_dir


def digest_of(text: str) -> str:
    """Return the SHA-256 of a document."""
    return hashlib.sha256(text.encode()).hexdigest()


def record(runs: Runs) -> dict[str, Any]:
    """Return the record of the run's decisions."""
    found: dict[str, Any] = json.loads((runs.run_dir / "replanning.json").read_text(encoding="utf-8"))
    return found


def kill(runs: Runs, judged_next: Path, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    """Run in mode Auto until the write of that number of an acceptance, which does not happen."""
    replace = os.replace
    shutil.rmtree(runs.run_dir, ignore_errors=True)
    shutil.copytree(judged_next, runs.run_dir)
    written: list[str] = []

    def replace_or_die(source: Any, target: Any) -> None:
        if written or Path(target).name == WRITES[0]:
            written.append(Path(target).name)
            if len(written) > at:
                raise KilledError
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace_or_die)
        with pytest.raises(KilledError):
            runs.run(**spec())
    assert tuple(written) == WRITES[: at + 1]


def test_a_run_killed_before_any_write_of_an_acceptance_comes_to_the_same_end(
    drifting_runs: Runs, judged_next: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command trains under the candidate, counts one restart, and searches no plan."""
    candidate = (judged_next / "candidate.json").read_text(encoding="utf-8")
    for killed_at, name in enumerate(WRITES):
        kill(drifting_runs, judged_next, monkeypatch, at=killed_at)
        result, found = drifting_runs.run(**spec()), record(drifting_runs)

        assert result.code == ExitCode.OK, (name, result.err)
        assert (drifting_runs.run_dir / "plan.json").read_text(encoding="utf-8") == candidate, name
        assert "plan: reused" in result.err, name
        assert (found["replans"], found["accepted"], len(found["history"])) == (1, 1, 2), name
        assert drifting_runs.starts[-1] == digest_of(candidate), name


def test_a_run_killed_once_it_recorded_an_acceptance_resumes_under_the_candidate_in_mode_off(
    drifting_runs: Runs, judged_next: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off makes no further plans, and keeps the one that was taken: nothing is searched again."""
    candidate = (judged_next / "candidate.json").read_text(encoding="utf-8")
    for killed_at, name in list(enumerate(WRITES))[1:]:
        kill(drifting_runs, judged_next, monkeypatch, at=killed_at)
        result = drifting_runs.run(**spec(launchPolicy="PlanOnly", replanning={"mode": "Off"}))

        assert result.code == ExitCode.OK, (name, result.err)
        assert "plan: reused" in result.err, name
        assert (drifting_runs.run_dir / "plan.json").read_text(encoding="utf-8") == candidate, name


def test_with_launch_policy_manual_a_candidate_is_suggested_alone(drifting_runs: Runs, judged_next: Path) -> None:
    """As in a cluster: approval is for the plan that the user looked at, and for none that is made later."""
    shutil.copytree(judged_next, drifting_runs.run_dir)
    digest = hashlib.sha256((drifting_runs.run_dir / "plan.json").read_bytes()).hexdigest()
    (drifting_runs.run_dir / "approved-plan").write_text(names.plan("job", digest), encoding="utf-8")
    result = drifting_runs.run(**spec(launchPolicy="Manual"))

    assert result.code == ExitCode.OK, result.err
    assert record(drifting_runs)["candidate"]["verdict"] == "BetterPlanFound"
    assert (len(drifting_runs.starts), "replans" in record(drifting_runs)) == (1, False)
    assert "BetterPlanFound: for the changed inputs" in result.err

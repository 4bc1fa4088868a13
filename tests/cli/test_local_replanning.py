"""``neuroshard run`` of a job whose inputs drift: another plan is made while it trains, and shown or taken."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.documents.plan import Plan
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.replanning import PlanTakenError
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.search.migration import Incumbent
from support import builders
from support.cli.local_candidates import replanning
from support.cli.local_runs import Runs, plan_text
from support.planner.exact_costs import ExactCosts
from support.trainer import training_builders

pytestmark = pytest.mark.processes

TABLES = [
    {"name": f"t{index}", "numEmbeddings": 200_000, "embeddingDim": 64, "poolingFactor": "4"} for index in range(8)
]
PARTS = (
    "forward_compute_ms",
    "backward_compute_ms",
    "input_communication_ms",
    "forward_communication_ms",
    "backward_communication_ms",
)
TRAINER = """
import hashlib, os, pathlib, sys, time
sys.path[:0] = {paths!r}
from support import builders
from support.trainer import training_builders
from neuroshard_api.documents.drift_report import SlowdownCause, DriftChange, Evidence, StepPart
from neuroshard_api.documents.input_statistics import FeatureStatistics
from neuroshard_api.documents.plan import Plan
run_dir = pathlib.Path(os.environ["NEUROSHARD_RUN_DIR"])
file = pathlib.Path(os.environ["NEUROSHARD_PLAN"])
plan, digest = Plan.read(file), hashlib.sha256(file.read_bytes()).hexdigest()
(run_dir / "starts").open("a").write(digest + "\\n")
is_first = len((run_dir / "starts").read_text().splitlines()) == 1
hot = {{table.name for table in plan.tables if table.shards[0].device == 0}}
features = tuple(
    FeatureStatistics(
        feature=table.name, lookups_per_sample=80.0 if table.name in hot else 4.0,
        distinct_rows_per_lookup=0.5, distinct_lists_per_sample=1.0,
    )
    for table in plan.tables
)
before_ms = plan.predicted.total_ms
embedding_ms = 3.4 * before_ms if is_first else before_ms
reference, times = (
    tuple(
        builders.rank_times(
            rank, forward_compute_ms=ms, backward_compute_ms=0.0, input_communication_ms=0.0,
            forward_communication_ms=0.0, backward_communication_ms=0.0, step_ms=1.2 * ms,
        )
        for rank in (0, 1)
    )
    for ms in (before_ms, embedding_ms)
)
evidence = (Evidence(part=StepPart.COMPUTE, rank=0, reference_ms=1.0, recent_ms=2.0),)
drifted = DriftChange(
    cause=SlowdownCause.INPUTS_DRIFTED, tables=tuple(sorted(hot)), since_step=4_000, evidence=evidence
)
step = 5_000 if is_first else 6_000
documents = {{
    "progress.json": builders.progress(step=step, num_steps=10_000_000),
    "step-report.json": builders.step_report(plan_sha256=digest, ranks=times, first_step=step - 100),
    "input-statistics.json": training_builders.input_statistics(plan_sha256=digest, features=features),
    "drift-report.json": training_builders.drift_report(
        plan_sha256=digest, last_step=step, reference=reference, recent=times, changes=(drifted,) if is_first else (),
        checkpoint_ms=1.0, start_ms=1.0,
    ),
}}
for name, document in documents.items():
    (run_dir / name).write_text(document.to_json())
record = run_dir.parent / "replanning.json"
deadline = time.monotonic() + 250
while time.monotonic() < deadline:
    time.sleep(0.2)
    text = record.read_text() if record.exists() else ""
    if (is_first and {ends_at!r} in text) or (not is_first and "measuredGainPercent" in text):
        break
else:
    sys.exit(3)
"""
"""Reports inputs that drifted at its first start, and that they are as planned for at the second."""


def train(runs: Runs, *, mode: str, ends_at: str = "never") -> Any:
    """Run the job in a mode of replanning; its first start ends by itself once the record says this."""
    paths = [str(Path(__file__).parents[1])]
    script = TRAINER.format(paths=paths, ends_at=ends_at)
    return runs.run(script=script, model={"embeddingTables": TABLES}, replanning={"mode": mode})


def record(runs: Runs) -> dict[str, Any]:
    """Return the record of the run's decisions."""
    found: dict[str, Any] = json.loads((runs.run_dir / "replanning.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mode_auto_restarts_the_training_under_a_plan_for_the_new_inputs(runs: Runs) -> None:
    """In the same folder, with promise and measurement in the record; the next run has nothing left to do."""
    result = train(runs, mode="Auto")
    plan, found = Plan.read(runs.run_dir / "plan.json"), record(runs)
    first, second = found["history"]

    assert result.code == ExitCode.OK, result.err
    assert [f"sha256:{each}" for each in runs.starts] == [first["hash"], second["hash"]]
    assert plan.incumbent is not None
    assert plan.incumbent.total_ms > 1.2 * plan.predicted.total_ms
    assert (found["replans"], found["accepted"], second["reason"]) == (1, 1, "InputsDrifted")
    assert second["promisedGainPercent"] > 0
    assert "measuredGainPercent" in second
    assert "restarts under another plan" in result.err
    assert "train: reused" in train(runs, mode="Auto").err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mode_suggest_says_what_a_plan_would_bring_and_stops_nothing(runs: Runs) -> None:
    """The plan is in the folder for those who want it."""
    result = train(runs, mode="Suggest", ends_at="BetterPlanFound")
    candidate, found = Plan.read(runs.run_dir / "candidate.json"), record(runs)

    assert result.code == ExitCode.OK, result.err
    assert (len(runs.starts), found["candidate"]["verdict"]) == (1, "BetterPlanFound")
    assert candidate.incumbent is not None
    assert candidate.incumbent.plan_sha256 == runs.starts[0]
    assert "BetterPlanFound: for the changed inputs" in result.err


def test_a_job_with_groups_makes_no_further_plans(runs: Runs) -> None:
    """A damaged record of them is not read."""
    runs.run_dir.mkdir()
    (runs.run_dir / "replanning.json").write_text('{"replans": -1}', encoding="utf-8")
    fields: dict[str, Any] = {"planner": {"shardingGroups": {}}, "replanning": {"mode": "Auto"}}
    result = runs.run(script="pass", model={"embeddingTables": TABLES}, **fields)

    assert result.code == ExitCode.OK, result.err
    assert record(runs) == {"replans": -1}
    assert "no plans are made for inputs that drift: spec.planner.shardingGroups permits groups" in result.err


def test_changes_of_deduplicated_features_alone_are_noted_once_and_not_planned_for(tmp_path: Path) -> None:
    """Their counts do not separate another duplication factor from other lists."""
    directory, notes = RunDirectory(tmp_path), list[str]()
    directory.train_dir.mkdir()
    directory.plan_file.write_text(plan_text(2), encoding="utf-8")
    plan = file_digest(directory.plan_file)
    evidence = (Evidence(part=StepPart.COMPUTE, rank=0, reference_ms=1.0, recent_ms=2.0),)
    drifted = DriftChange(cause=SlowdownCause.INPUTS_DRIFTED, tables=("t0",), since_step=4_000, evidence=evidence)
    further = replanning(directory, notes.append, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    statistics = training_builders.input_statistics(
        plan_sha256=plan, changed_features=("item",), without_repeats=("item",)
    )
    for last_step in (5_000, 5_100):
        documents = {
            "step-report.json": builders.step_report(plan_sha256=plan),
            "drift-report.json": training_builders.drift_report(
                plan_sha256=plan, last_step=last_step, changes=(drifted,)
            ),
            "input-statistics.json": statistics,
        }
        for name, document in documents.items():
            (directory.train_dir / name).unlink(missing_ok=True)
            (directory.train_dir / name).write_text(document.to_json(), encoding="utf-8")
        further.look()

    (note,) = notes
    assert note.startswith(
        "CandidateUnsupported: inputs drifted since step 4,000, and no plan is made for them: only deduplicated"
    )
    assert not directory.replanning_file.exists()
    assert not directory.log("replan").exists()


def test_the_record_dates_each_plan_by_its_own_start(tmp_path: Path) -> None:
    """The first one by its file, the candidate by the time at which it is taken."""
    directory, written_at, taken_at = RunDirectory(tmp_path), datetime(2026, 1, 1, tzinfo=UTC), datetime.now(UTC)
    asked = builders.request(*builders.tables(4, pooling_factor=4.0), num_devices=2)
    before = search(asked, bundle=ExactCosts(asked.topology.device))
    directory.train_dir.mkdir()
    directory.plan_file.write_text(before.to_json(), encoding="utf-8")
    os.utime(directory.plan_file, (written_at.timestamp(), written_at.timestamp()))
    plan = file_digest(directory.plan_file)
    hot = {each.name for each in before.tables if any(shard.device == 0 for shard in each.shards)}
    now = tuple(
        each.model_copy(update={"pooling_factor": 80.0}) if each.name in hot else each for each in asked.tables.tables
    )
    candidate = search(
        builders.request(*now, num_devices=2),
        bundle=ExactCosts(asked.topology.device),
        incumbent=Incumbent(tables=before.tables, plan_sha256=plan),
    )
    assert candidate.incumbent is not None
    directory.candidate_file.write_text(candidate.to_json(), encoding="utf-8")
    directory.replanning_file.write_text(
        json.dumps({"candidates": 1, "candidate": {"number": 1, "sinceStep": 4_000, "startTime": str(written_at)}}),
        encoding="utf-8",
    )
    reference, recent = (
        tuple(builders.rank_times(rank, **dict.fromkeys(PARTS, ms / len(PARTS)), step_ms=1.2 * ms) for rank in (0, 1))
        for ms in (before.predicted.total_ms, candidate.incumbent.total_ms)
    )
    evidence = (Evidence(part=StepPart.COMPUTE, rank=0, reference_ms=1.0, recent_ms=2.0),)
    drifted = DriftChange(
        cause=SlowdownCause.INPUTS_DRIFTED, tables=tuple(sorted(hot)), since_step=4_000, evidence=evidence
    )
    for name, document in {
        "progress.json": builders.progress(step=5_000, num_steps=1_000_000_000),
        "step-report.json": builders.step_report(plan_sha256=plan, ranks=recent, first_step=4_900),
        "drift-report.json": training_builders.drift_report(
            plan_sha256=plan,
            last_step=5_000,
            reference=reference,
            recent=recent,
            changes=(drifted,),
            checkpoint_ms=1.0,
            start_ms=1.0,
        ),
    }.items():
        (directory.train_dir / name).write_text(document.to_json(), encoding="utf-8")
    further = replanning(directory, lambda _: None, clock=lambda: taken_at, mode="Auto")
    with pytest.raises(PlanTakenError):
        further.look()
    further.accept()
    kept = json.loads(directory.replanning_file.read_text(encoding="utf-8"))

    assert [datetime.fromisoformat(each["startTime"]) for each in kept["history"]] == [written_at, taken_at]


def test_a_damaged_record_stops_a_run_but_not_in_mode_off(runs: Runs) -> None:
    """The file, what was found, and both remedies are named; with Off the plan is reused, and the record left alone."""
    jobs: dict[str, Any] = {"script": "pass", "model": {"embeddingTables": TABLES}, "launchPolicy": "PlanOnly"}
    assert runs.run(**jobs).code == ExitCode.OK
    file = runs.run_dir / "replanning.json"
    file.write_text('{"replans": -1}', encoding="utf-8")
    stopped, off = (runs.run(**jobs, replanning={"mode": mode}) for mode in ("Auto", "Off"))

    assert stopped.code == ExitCode.INVALID_INPUT
    assert f"{file}: replans" in stopped.err
    assert "-1" in stopped.err
    assert "hint: move the file away" in stopped.err
    assert off.code == ExitCode.OK, off.err
    assert "plan: reused" in off.err
    assert record(runs) == {"replans": -1}
    file.unlink()
    assert runs.run(**jobs, replanning={"mode": "Auto"}).code == ExitCode.OK

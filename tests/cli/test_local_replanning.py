"""``neuroshard run`` of a job whose inputs drift: another plan is made while it trains, and shown or taken."""

import json
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.process.exit_codes import ExitCode
from support.cli.local_runs import Runs

pytestmark = pytest.mark.processes

TABLES = [
    {"name": f"t{index}", "numEmbeddings": 200_000, "embeddingDim": 64, "poolingFactor": "4"} for index in range(8)
]
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
record = run_dir.parent / "status.json"
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
    found: dict[str, Any] = json.loads((runs.run_dir / "status.json").read_text(encoding="utf-8"))["replanning"]
    return found


@pytest.mark.slow
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
    """The reason is named at the start."""
    fields: dict[str, Any] = {"planner": {"shardingGroups": {}}, "replanning": {"mode": "Auto"}}
    result = runs.run(script="pass", model={"embeddingTables": TABLES}, **fields)

    assert result.code == ExitCode.OK, result.err
    assert "no plans are made for inputs that drift: spec.planner.shardingGroups permits groups" in result.err

"""One `neuroshard run` whose inputs drift: noticed, planned for, and trained on under another plan, on two processes.

    python -m benchmarks.replanned_run [--note SENTENCE]

The job is planned first: the tables that its plan puts on device 0 are those whose lookups grow in mid-training. The
run is in mode Auto, and decides by itself. Then its two plans, and one made for the grown lookups from the start, are
trained in turns on these lookups. What the run itself measured is written before that comparison begins.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.drift_report import DriftReport, SlowdownCause, first_change
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, STEP_REPORT_FILE
from neuroshard_api.job.step_cost import embedding_ms
from neuroshard_api.replanning.decision import WARM_UP_STEPS

from benchmarks.results_file import cpu_model, hardware_slug, write_result

WORLD_SIZE: Final = 2
BATCH_SIZE: Final = 256
POOLING: Final = 5
TIMES: Final = 30
"""Growth of the lookups."""
NAMES: Final = ("t0", "t1", "t2", "t3")
ROWS, COLUMNS = 20_000, 128
DRIFT_STEP: Final = 400
STEPS: Final = 4_000
REPORT_STEPS: Final = 50
ROUNDS, ROUND_STEPS = 12, 20
POLL_S: Final = 0.2

HEAD = """# A run that plans again by itself

Machine: {machine}, two cores; load average of the last minute at the start {start:.1f}, at the end {end:.1f}. {note}
One `neuroshard run` in mode Auto: {tables} tables of {rows:,} rows and {columns} columns, {pooling} lookups each,
{batch} samples per process, two processes over gloo with one thread each, cost models measured by the run itself in
{budget} s, the samples of {steps:,} steps, of which a tenth is held out. From step {drift:,} on, the tables of device 0
({hot}) are looked up {times} times as often. Nothing but the job and its data is given."""

NOT_COMPARED = "The plans were not compared in turns: that part did not come to its end."

COMPARED = """Then the plans took turns in the same two processes, on the grown lookups, {rounds} rounds of {steps}
steps:

| plan | embedding part of a step, ms (median of rounds) | whole step, ms |
|---|---|---|
{rows}

The run's plan lowers the embedding part by {reached:.1%}, the one made for the grown lookups by {best:.1%}: {share:.0%}
of the gain is reached (aim: 80 %)."""

NOTE = """Times are by the clock, so that other programs on the two cores are in them; plans that took turns share that
load. The exchange is gloo's, over the cores that compute. No number here is one of a GPU."""


def job(name: str, *, hot: Sequence[str] = (), drifts: bool = False, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return the job.

    Args:
        name: of it.
        hot: tables whose lookups grow.
        drifts: whether they grow in mid-training; otherwise they are grown from the start.
        **spec: replaces parts of it.
    """
    at_sample = DRIFT_STEP * BATCH_SIZE * WORLD_SIZE
    drift = [{"atSample": at_sample, "feature": each, "poolingFactorTimes": TIMES} for each in hot]
    usual = {
        "model": {
            "embeddingTables": [
                {
                    "name": each,
                    "numEmbeddings": ROWS,
                    "embeddingDim": COLUMNS,
                    "poolingFactor": POOLING * (TIMES if each in hot and not drifts else 1),
                }
                for each in NAMES
            ],
            "batchSizePerDevice": BATCH_SIZE,
            "denseArchLayerSizes": [32],
            "overArchLayerSizes": [32],
        },
        "profiler": {"backend": "FBGEMM", "budgetSeconds": 30},
        "trainer": {"numNodes": 1, "numProcPerNode": WORLD_SIZE, "env": [{"name": "OMP_NUM_THREADS", "value": "1"}]},
        "data": {"numSamples": STEPS * BATCH_SIZE * WORLD_SIZE},
        "experimental": {"data": {"readerProcesses": 1}, **({"syntheticDrift": drift} if drifts else {})},
        "training": {"logEverySteps": REPORT_STEPS},
        "checkpoint": {"everySteps": 500},
        "replanning": {"mode": "Auto"},
    }
    return {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": "DLRMTrainingJob",
        "metadata": {"name": name},
        "spec": {**usual, **spec},
    }


@dataclass(frozen=True, slots=True)
class Measured:
    """A report of the run."""

    plan_sha256: str
    first_step: int
    last_step: int
    embedding_ms: float
    seconds: float
    """Since the run began."""


class Scratch:
    """A folder with jobs and their runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"

    def write(self, document: Mapping[str, Any]) -> Path:
        """Write a job."""
        file = self.folder / f"{document['metadata']['name']}.yaml"
        file.write_text(yaml.safe_dump(dict(document)))
        return file

    def neuroshard(self, *arguments: object) -> list[str]:
        """Return a command of this installation."""
        return [sys.executable, "-c", "from neuroshard_cli.main import main; main()", *map(str, arguments)]

    @property
    def correction(self) -> str:
        """What the run says of its cost models' error on its last steps, without the folder that it names."""
        lines = [line for line in (self.folder / "run.log").read_text().splitlines() if line.startswith("cost models ")]
        return lines[-1].replace(str(self.run_dir), "run") if lines else "none"

    def planned(self, document: Mapping[str, Any], *options: object) -> Plan:
        """Plan a job and train nothing."""
        only = {**document, "spec": {**document["spec"], "launchPolicy": "PlanOnly"}}
        run_dir = self.run_dir if document["metadata"]["name"] == "drifting" else self.folder / "fresh"
        subprocess.run(self.neuroshard("run", self.write(only), "--run-dir", run_dir, *options), check=True)  # noqa: S603
        return Plan.read(run_dir / "plan.json")

    def trained(self, document: Mapping[str, Any]) -> "tuple[list[Measured], DriftReport | None]":
        """Run a job to its end; return what it measured, and the first report that names the changed inputs."""
        found: dict[int, Measured] = {}
        drift: DriftReport | None = None
        begun = time.monotonic()
        log = (self.folder / "run.log").open("w")
        with (
            log,
            subprocess.Popen(  # noqa: S603
                self.neuroshard("run", self.write(document), "--run-dir", self.run_dir), stdout=log, stderr=log
            ) as process,
        ):
            while process.poll() is None:
                time.sleep(POLL_S)
                train_dir = self.run_dir / "train"
                try:
                    report = StepReport.read(train_dir / STEP_REPORT_FILE)
                    found[report.first_step] = Measured(
                        report.plan_sha256,
                        report.first_step,
                        report.first_step + report.num_steps - 1,
                        embedding_ms(report.ranks),
                        time.monotonic() - begun,
                    )
                    if drift is None:
                        read = DriftReport.read(train_dir / DRIFT_REPORT_FILE)
                        drift = read if first_change(read.changes, SlowdownCause.INPUTS_DRIFTED) else None
                except DocumentError:
                    continue
        if process.returncode:
            raise SystemExit(f"the run ended with {process.returncode}:\n{(self.folder / 'run.log').read_text()}")
        return list(found.values()), drift

    @property
    def record(self) -> dict[str, Any]:
        """What the run decided."""
        found: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text()).get("replanning", {})
        return found


def parts(measured: Sequence[Measured]) -> dict[str, float]:
    """Return the median embedding part of a step before the change, after it, and under the second plan."""
    first, last = measured[0].plan_sha256, measured[-1].plan_sha256
    resumed = min((each.first_step for each in measured if each.plan_sha256 == last), default=0)
    warm = [each for each in measured if each.first_step >= WARM_UP_STEPS]
    groups = {
        "before": [each for each in warm if each.last_step < DRIFT_STEP],
        "after": [each for each in warm if each.plan_sha256 == first and each.first_step >= DRIFT_STEP],
        "replanned": [
            each for each in warm if each.plan_sha256 == last != first and each.first_step >= resumed + WARM_UP_STEPS
        ],
    }
    return {name: median(each.embedding_ms for each in group) for name, group in groups.items() if group}


def main() -> None:
    """Run it, write what it measured, compare the plans, and write the whole result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--note", default="", help="sentence about what else ran on the machine")
    note = parser.parse_args().note
    start = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        scratch = Scratch(Path(name))
        before = scratch.planned(job("drifting"))
        hot = [table.name for table in before.tables if {shard.device for shard in table.shards} == {0}]
        (scratch.folder / "before.json").write_text(before.to_json())
        drifting = job("drifting", hot=hot, drifts=True)
        measured, drift = scratch.trained(drifting)
        print((scratch.folder / "run.log").read_text(), file=sys.stderr)
        found = parts(measured)
        if drift is None or "replanned" not in found:
            raise SystemExit(f"no restart under another plan: {json.dumps(scratch.record)}; drift: {drift}")
        facts = facts_of(found, drift, scratch.record, hot, correction=scratch.correction, start=start, note=note)
        print(write_result("replanned-run", [*facts, "", NOT_COMPARED], hardware=hardware_slug()), file=sys.stderr)
        fresh_job = job("fresh", hot=hot)
        fresh = scratch.planned(fresh_job, "--bundle", scratch.run_dir / "profile")
        (scratch.folder / "new.json").write_text((scratch.run_dir / "plan.json").read_text())
        (scratch.folder / "fresh.json").write_text(fresh.to_json())
        plans = [scratch.folder / f"{each}.json" for each in ("before", "new", "fresh")]
        out = scratch.folder / "comparison.json"
        options = ("--rounds", ROUNDS, "--steps", ROUND_STEPS, "--out", out)
        command = scratch.neuroshard("compare-training", scratch.write(fresh_job), *plans, *options)
        subprocess.run(command, check=True)  # noqa: S603
        lines = [*facts, "", *compared(TrainingComparison.read(out))]
        print(write_result("replanned-run", lines, hardware=hardware_slug()))


def facts_of(
    found: Mapping[str, float],
    drift: DriftReport,
    record: Mapping[str, Any],
    hot: Sequence[str],
    *,
    correction: str,
    start: float,
    note: str,
) -> list[str]:
    """Return the lines of what the run itself measured and decided."""
    change = first_change(drift.changes, SlowdownCause.INPUTS_DRIFTED)
    assert change is not None, "the caller checked"
    second = record["history"][1]
    head = HEAD.format(
        machine=cpu_model(),
        start=start,
        end=os.getloadavg()[0],
        tables=len(NAMES),
        rows=ROWS,
        columns=COLUMNS,
        pooling=POOLING,
        batch=BATCH_SIZE,
        budget=30,
        drift=DRIFT_STEP,
        steps=STEPS,
        hot=", ".join(hot),
        times=TIMES,
        note=note,
    )
    steps = {
        "embedding part of a step before the change, ms (median of reports)": f"{found['before']:.1f}",
        "after it, under the plan in force": f"{found['after']:.1f}",
        "after the restart under the new plan": f"{found['replanned']:.1f}",
        "change dated at step, named at step": f"{change.since_step:,}, {drift.last_step:,}",
        "cause, tables, confidence": f"{change.cause}, {', '.join(change.tables)}, {change.confidence}",
        "last step reported before the restart": f"{second.get('fromStep', 0):,}",
        "gain promised by the run": f"{second['promisedGainPercent']} %",
        "gain measured by the run": f"{second.get('measuredGainPercent')} %",
        "decision": str(second["message"]),
        "restarts for a plan": f"{record['replans']}",
        "correction of the cost models by the run's own last steps": correction,
    }
    table = ["| of the run | |", "|---|---|", *(f"| {name} | {value} |" for name, value in steps.items())]
    return [*head.split("\n"), "", *table]


def compared(comparison: TrainingComparison) -> list[str]:
    """Return the lines of the plans that took turns."""
    names = {"before": "in force at the change", "new": "taken by the run", "fresh": "made for the grown lookups"}
    medians = {name: median(comparison.plans[name].embedding_ms or ()) for name in names}
    lines = [
        f"| {words} | {medians[name]:.2f} | {median(comparison.plans[name].step_ms):.2f} |"
        for name, words in names.items()
    ]
    gain, best = (medians["before"] - medians[name] for name in ("new", "fresh"))
    text = COMPARED.format(
        rounds=ROUNDS,
        steps=ROUND_STEPS,
        rows="\n".join(lines),
        reached=gain / medians["before"],
        best=best / medians["before"],
        share=gain / best if best > 0 else float("nan"),
    )
    return [*text.split("\n"), "", *NOTE.split("\n")]


if __name__ == "__main__":
    main()

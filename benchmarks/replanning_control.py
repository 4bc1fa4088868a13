"""One `neuroshard run` in mode Auto whose inputs stay as they are: what the drift watch reports, and what is planned.

    python -m benchmarks.replanning_control [--minutes 30] [--bundle DIR] [--note SENTENCE]

The job is that of `replanned_run` without its drift. It trains until the time is over, and is stopped then.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.drift_report import DriftReport
from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE

from benchmarks.replanned_run import BATCH_SIZE, NAMES, POLL_S, POOLING, Scratch, job
from benchmarks.results_file import cpu_model, hardware_slug, write_result

ENDLESS_SAMPLES: Final = 2_000_000_000
STARTS_WITHIN_S: Final = 900.0
STOPS_WITHIN_S: Final = 600.0
"""With a checkpoint, on a crowded machine at low priority."""
TWENTIETHS: Final = 20

HEAD = """# A run that has no reason to plan again

Machine: {machine}, two cores; load average of the last minute at the start {start:.1f}, at the end {end:.1f}. {note}
One `neuroshard run` in mode Auto: {tables} tables, {pooling} lookups each, {batch} samples per process, two processes
over gloo with one thread each, cost models measured {measured}. The inputs are the same from the first step to
the last. The run was stopped {minutes:g} minutes after the first report of its drift watch."""

NOTE = """Step times are by the clock, of the slowest rank, each the median of a report: other programs on the two cores
are in them. Slow-downs by other programs are reported as such. Only inputs that drifted are a reason to plan again, and
only a rank that stays slower than its peers is one to start elsewhere, which a run on one machine cannot."""


@dataclass(slots=True)
class Seen:
    """What the drift watch reported, by the last step of each report."""

    causes: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Causes that a report named; empty: steady."""
    step_ms: dict[int, float] = field(default_factory=dict)
    """Of the slowest rank."""
    plans: set[str] = field(default_factory=set)

    def add(self, report: DriftReport) -> None:
        """Take a report in."""
        self.causes[report.last_step] = tuple(sorted(str(change.cause) for change in report.changes))
        self.step_ms[report.last_step] = max(times.step_ms for times in report.recent)
        self.plans.add(report.plan_sha256)


def watched(scratch: Scratch, minutes: float, bundle: Path | None) -> Seen:
    """Train for so long after the first report; return what was reported until then. Bundle None: the run measures."""
    seen, deadline = Seen(), time.monotonic() + STARTS_WITHIN_S
    file = scratch.run_dir / "train" / DRIFT_REPORT_FILE
    document = job("steady", data={"numSamples": ENDLESS_SAMPLES})
    models = () if bundle is None else ("--bundle", bundle)
    command = scratch.neuroshard("run", scratch.write(document), "--run-dir", scratch.run_dir, *models)
    with (
        (scratch.folder / "run.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,  # noqa: S603
    ):
        try:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
                try:
                    report = DriftReport.read(file)
                except DocumentError:
                    continue
                is_first = not seen.causes
                seen.add(report)
                if is_first and seen.causes:
                    deadline = time.monotonic() + 60 * minutes
        finally:
            ended = process.poll()
            process.terminate()  # a shell's background processes ignore SIGINT
            try:
                process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()  # leaving the block waits for it
                raise
    if ended is not None or not seen.causes:
        raise SystemExit(f"the run ended with {ended}, before its time:\n{(scratch.folder / 'run.log').read_text()}")
    return seen


def lines_of(seen: Seen, record: Mapping[str, Any], *, start: float, options: argparse.Namespace) -> list[str]:
    """Return the lines of the result."""
    named = Counter(" and ".join(causes) or "none" for causes in seen.causes.values())
    cuts = quantiles(seen.step_ms.values(), n=TWENTIETHS)
    head = HEAD.format(
        machine=cpu_model(),
        start=start,
        end=os.getloadavg()[0],
        tables=len(NAMES),
        pooling=POOLING,
        batch=BATCH_SIZE,
        minutes=options.minutes,
        measured="by the run itself" if options.bundle is None else "on this machine before it",
        note=options.note,
    )
    rows = {
        "steps trained": f"{max(seen.causes):,}",
        "reports of the drift watch": f"{len(seen.causes):,}",
        "step, ms: 5 %, 50 %, and 95 % of the reports": " ".join(f"{cuts[at]:.1f}" for at in (0, 9, 18)),
        "causes named by the reports": "; ".join(f"{name}: {count:,}" for name, count in named.most_common()),
        "plans trained under": f"{len(seen.plans)}",
        "candidates asked for": f"{record.get('candidates', 0)}",
        "restarts for a plan": f"{record.get('replans', 0)}",
    }
    table = ["| of the run | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    return [*head.split("\n"), "", *table, "", *NOTE.split("\n")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it, and write the result, whatever it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="of training after the first report of the drift watch"
    )
    parser.add_argument("--bundle", type=Path, help="cost models of this machine. If unset: the run measures them")
    parser.add_argument("--note", default="", help="sentence about what else ran on the machine")
    options = parser.parse_args(arguments)
    start = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        scratch = Scratch(Path(name))
        seen = watched(scratch, options.minutes, options.bundle)
        print((scratch.folder / "run.log").read_text(), file=sys.stderr)
        record = scratch.record
    lines = lines_of(seen, record, start=start, options=options)
    print(write_result("replanning-control", lines, hardware=hardware_slug()))


if __name__ == "__main__":
    main()

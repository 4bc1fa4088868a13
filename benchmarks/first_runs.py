"""The runs that a newcomer starts first: predicted next to measured times, seconds, and other work.

    python -m benchmarks.first_runs                            # each example once: five minutes on an idle machine
    python -m benchmarks.first_runs demo sessions --times 2    # more of some
    python -m benchmarks.first_runs --times 0                  # the result alone

Each run measures, plans, and trains in a folder of its own. Its numbers are kept in build/first-runs.jsonl, and the
result has all runs of the commit that is checked out, however many calls made them. A run counts as one on an idle
machine where other programs used less than a tenth of a processor.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from neuroshard_cli.local.other_work import OtherWork

from benchmarks.results_file import cpu_model, hardware_slug, write_result

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "first-runs.jsonl"
MOVIELENS = ROOT / ".cache" / "recbole-1.2.1" / "recbole" / "dataset_example"
EXAMPLES: Mapping[str, tuple[str, Path]] = {
    "demo": ("02-movielens.yaml", MOVIELENS),
    "smallest": ("01-smallest.yaml", ROOT),
    "sessions": ("09-sessions.yaml", ROOT),
}
"""By name: the job's file, and the folder in which its data is."""
PARTS = {
    "total": "totalMicroseconds",
    "compute": "computeMicroseconds",
    "forward": "forwardCommunicationMicroseconds",
    "backward": "backwardCommunicationMicroseconds",
    "dense": "denseMicroseconds",
    "step": "stepMicroseconds",
}
TOTAL_PERCENT, PART_PERCENT = 25, 40
"""Aims of the total, and of each of the four parts."""
IDLE_PROCESSORS = 0.1
DEMO_SECONDS = 120
"""Aim for the demo on an idle machine."""
TIMEOUT_SECONDS = 3600
HEAD = """# First runs

Machine: {machine}, {cores} cores. `demo` is what `make demo` runs after the installation, the others are the examples
01-smallest and 09-sessions; each in a new folder, so that it measures this machine first. Times are those of the table
that ends a run: of the rank that is slowest in the embedding part, and of the slowest rank for dense part and whole
step. Other work is the processors that other programs used meanwhile, at most. Aims on an idle machine (other work
below {idle}): total within {total} %, and each of compute, forward exchange, backward exchange, and dense part within
{part} %. A machine that was slower than while it was profiled, since its readers and ranks share cores or cores became
slower, has a second row: the error of what is predicted for a machine as slow, by waits and speeds that the run itself
measured. It explains an error, and no aim is judged by it."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run."""

    example: str
    commit: str
    exit_code: int
    seconds: float
    load: tuple[float, float]
    """Load average of one minute, at the start and at the end."""
    other_processors: float | None
    """Used by other programs, at most. None: the system does not count it."""
    predicted: Mapping[str, int]
    """Microseconds by the name of a part; what has no time, or 0, is not in it."""
    measured: Mapping[str, int]
    wait_percent: int | None
    """Of the time in which a worker could run: its wait for a processor."""
    difference: str | None
    """What the run says of its own error."""
    as_slow: Mapping[str, int] = field(default_factory=dict)
    """Predicted for a machine as slow as it was in training; empty where it was as while it was profiled."""
    core_slowdown: float | None = None
    """Time of a fixed loop in training over that in the profile. None: the machine was as while it was profiled."""

    @property
    def is_idle(self) -> bool:
        """Whether the machine did little else."""
        return self.other_processors is not None and self.other_processors < IDLE_PROCESSORS

    @property
    def errors(self) -> dict[str, float]:
        """Excess of measured over predicted in percent, of the parts that have both."""
        return self._excess_over(self.predicted)

    @property
    def errors_as_slow(self) -> dict[str, float]:
        """The same over the prediction for a machine as slow."""
        return self._excess_over(self.as_slow)

    @property
    def is_within(self) -> bool:
        """Whether the total and all parts meet their aims."""
        limits = {"total": TOTAL_PERCENT, **dict.fromkeys(("compute", "forward", "backward", "dense"), PART_PERCENT)}
        return "total" in self.errors and all(
            abs(self.errors[name]) <= limit for name, limit in limits.items() if name in self.errors
        )

    def _excess_over(self, predicted: Mapping[str, int]) -> dict[str, float]:
        both = predicted.keys() & self.measured.keys()
        return {name: 100 * (self.measured[name] / predicted[name] - 1) for name in PARTS if name in both}


def main() -> None:
    """Run, and write the result of all runs of this commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=", ".join(EXAMPLES))
    parser.add_argument("--times", type=int, default=1, help="runs of each; default: 1")
    options = parser.parse_args()
    if unknown := sorted(set(options.examples) - EXAMPLES.keys()):
        parser.error(f"unknown example {unknown[0]!r}; hint: choose among {', '.join(EXAMPLES)}")
    KEPT.parent.mkdir(exist_ok=True)
    for _ in range(options.times):
        for example in options.examples or EXAMPLES:
            found = run(example)
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(asdict(found))}\n")
            print(_row(found), flush=True)
    runs = [each for each in kept() if each.commit == commit()]
    if not runs:
        parser.error("no runs of this commit are kept; hint: leave out --times 0")
    print(write_result("first-runs", list(report(runs)), hardware=hardware_slug()))


def run(example: str) -> Run:
    """Run an example in a new folder."""
    file, data = EXAMPLES[example]
    if example == "demo" and not MOVIELENS.is_dir():
        raise SystemExit(f"{MOVIELENS}: is not there; hint: make demo")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / example
        command = [sys.executable, "-c", "from neuroshard_cli.main import main; main()", "run"]
        command += [str(ROOT / "examples" / file), "--run-dir", str(folder)]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        load, others, began = os.getloadavg()[0], OtherWork(), time.monotonic()
        ended = subprocess.run(  # noqa: S603 - the project's own command
            command, env=environment, cwd=data, timeout=TIMEOUT_SECONDS, check=False, capture_output=True
        )
        seconds = time.monotonic() - began
        other_processors = others.processors()
        if ended.returncode:
            sys.stderr.write(ended.stderr.decode(errors="replace"))
        result = folder / "result.json"
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    measured = found.get("measured") or {}
    return Run(
        example=example,
        commit=commit(),
        exit_code=ended.returncode,
        seconds=seconds,
        load=(load, os.getloadavg()[0]),
        other_processors=other_processors,
        predicted=_times(found.get("predicted") or {}),
        measured=_times(measured),
        wait_percent=measured.get("processorWaitPercent"),
        difference=found.get("difference"),
        as_slow=_times(found.get("predictedAsSlow") or {}),
        core_slowdown=found.get("coreSlowdown"),
    )


def kept() -> Iterator[Run]:
    """Yield the runs that are kept."""
    for line in KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else ():
        values = json.loads(line)
        yield Run(**{**values, "load": tuple(values["load"])})


def commit() -> str:
    """Return the commit that is checked out."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - a fixed command


def report(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the result."""
    yield from HEAD.format(
        machine=cpu_model(),
        cores=os.cpu_count(),
        idle=IDLE_PROCESSORS,
        total=TOTAL_PERCENT,
        part=PART_PERCENT,
    ).splitlines()
    yield f"Commit {runs[0].commit}."
    yield from (
        "",
        "| run | exit | seconds | load | other work | predicted ms | measured ms | error of total | step ms |",
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in runs:
        yield _row(each)
    yield from (
        "",
        "| run | total | compute | forward | backward | dense | step | waited for a processor | within the aims |",
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for each in runs:
        wait = "" if each.wait_percent is None else f"{each.wait_percent} %"
        yield _parts_row(each.example, each.errors, wait, "yes" if each.is_within else "no")
        if each.as_slow:
            yield _parts_row("as slow", each.errors_as_slow, "", f"cores {each.core_slowdown} times as slow")
    yield ""
    for is_idle in (True, False):
        for example in EXAMPLES:
            those = [each for each in runs if each.is_idle is is_idle and each.example == example]
            if those:
                yield f"- {_summary(example, those, is_idle=is_idle)}"
    sentences = dict.fromkeys(each.difference for each in runs if each.difference is not None)
    if sentences:
        yield from ("", "What the runs say of errors themselves:", "", *(f"- {each}" for each in sentences))


def _row(each: Run) -> str:
    total = (f"{times['total'] / 1000:.2f}" if "total" in times else "" for times in (each.predicted, each.measured))
    load = " to ".join(f"{value:.1f}" for value in each.load)
    step = f"{each.measured['step'] / 1000:.1f}" if "step" in each.measured else ""
    error = f"{each.errors['total']:+.0f} %" if "total" in each.errors else ""
    cells = [
        each.example,
        each.exit_code,
        f"{each.seconds:.0f}",
        load,
        "" if each.other_processors is None else f"{each.other_processors:.2f}",
        *total,
        error,
        step,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _parts_row(name: str, errors: Mapping[str, float], *rest: str) -> str:
    shares = [f"{errors[part]:+.0f} %" if part in errors else "" for part in PARTS]
    return f"| {' | '.join([name, *shares, *rest])} |"


def _summary(example: str, runs: Sequence[Run], *, is_idle: bool) -> str:
    passed, where = sum(not each.exit_code for each in runs), "on an idle machine" if is_idle else "next to other work"
    text = f"`{example}` {where}: {passed} of {len(runs)} ended with 0"
    if not is_idle:
        return f"{text}, at loads of {min(each.load[0] for each in runs):.1f} and more."
    totals = [abs(each.errors["total"]) for each in runs if "total" in each.errors]
    text += f", {sum(each.is_within for each in runs)} within the aims"
    if totals:
        text += f", error of the total {median(totals):.0f} % in the median and at most {max(totals):.0f} %"
    if example == "demo":
        text += f"; {sum(each.seconds < DEMO_SECONDS for each in runs)} took less than {DEMO_SECONDS} s"
    return f"{text}."


def _times(cost: Mapping[str, Any]) -> dict[str, int]:
    return {name: cost[field] for name, field in PARTS.items() if cost.get(field)}


if __name__ == "__main__":
    main()

"""The runs that a newcomer starts first: whether they pass, predicted next to measured times, seconds, and other work.

    python -m benchmarks.first_runs                       # each example once: five minutes on an idle machine
    python -m benchmarks.first_runs demo --times 5        # more of some
    python -m benchmarks.first_runs --busy-loops 8 --times 5 --kept busy.jsonl --minutes 15    # again till all are
    python -m benchmarks.first_runs --times 0 --kept busy.jsonl                                # the result alone

Each run measures, plans, tries the plan, and trains in a folder of its own. What it came to is kept in a file, and the
result has all runs of that file, however many calls made them: a call adds those that are missing. A run counts as one
on an idle machine where other programs used less than a tenth of a processor.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
SHOWN_LINES = 3
"""Last lines of a run in the result."""
HEAD = """# First runs

Machine: {machine}, {cores} cores. `demo` is what `make demo` runs after the installation, which is the example
02-movielens; the others are the examples 01-smallest and 09-sessions. Each run is in a new folder, so that it measures
this machine first. Next to a run, as many busy loops as its column says took what they got of the processors; other
work is the processors that other programs used meanwhile, at most. A run passes if it ends with 0 and has trained.

Times are those of the table that ends a run: of the rank that is slowest in the embedding part, and of the slowest rank
for dense part and whole step. `tried` are the times of the steps that a run takes under its plan before the training,
`predicted` those of the cost models alone. Aims on an idle machine (no busy loops, other work below {idle}): total
within {total} %, and each of compute, forward exchange, backward exchange, and dense part within {part} %. Both rows of
a run are held against them; what the run shows as its error is that of the tried times."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run."""

    example: str
    commit: str
    busy_loops: int
    exit_code: int
    seconds: float
    load: tuple[float, float]
    """Load average of one minute, at the start and at the end."""
    other_processors: float | None
    """Used by other programs, at most. None: the system does not count it."""
    predicted: Mapping[str, int]
    """Microseconds by the name of a part; what has no time, or 0, is not in it."""
    tried: Mapping[str, int]
    measured: Mapping[str, int]
    wait_percent: int | None
    """Of the time in which a worker could run: its wait for a processor."""
    steps: int | None
    """That the training took. None: it took none."""
    differences: Sequence[str]
    """What the run says of parts that took another time than in its trial."""
    last_lines: Sequence[str]

    @property
    def has_passed(self) -> bool:
        """Whether it succeeded, and trained."""
        return not self.exit_code and bool(self.steps)

    @property
    def is_idle(self) -> bool:
        """Whether the machine did little else."""
        return not self.busy_loops and self.other_processors is not None and self.other_processors < IDLE_PROCESSORS

    def errors(self, expected: Mapping[str, int]) -> dict[str, float]:
        """Return the excess of measured over expected times in percent, of the parts that have both."""
        both = expected.keys() & self.measured.keys()
        return {name: 100 * (self.measured[name] / expected[name] - 1) for name in PARTS if name in both}

    def is_within(self, expected: Mapping[str, int]) -> bool:
        """Return whether the total and all parts meet their aims."""
        limits = {"total": TOTAL_PERCENT, **dict.fromkeys(("compute", "forward", "backward", "dense"), PART_PERCENT)}
        errors = self.errors(expected)
        return "total" in errors and all(abs(errors[name]) <= limit for name, limit in limits.items() if name in errors)


def main() -> None:
    """Run what is missing, and write the result of all runs that are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=", ".join(EXAMPLES))
    parser.add_argument("--times", type=int, default=1, help="runs of each that are kept in the end; default: 1")
    parser.add_argument("--busy-loops", type=int, default=0, help="processes that compute meanwhile; default: none")
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the runs; default: build/first-runs.jsonl")
    parser.add_argument("--minutes", type=float, help="begin no run after so long; default: no limit")
    options = parser.parse_args()
    if unknown := sorted(set(options.examples) - EXAMPLES.keys()):
        parser.error(f"unknown example {unknown[0]!r}; hint: choose among {', '.join(EXAMPLES)}")
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    done = [each for each in kept(options.kept) if each.busy_loops == options.busy_loops]
    began = time.monotonic()
    with busy(options.busy_loops):
        for example in missing(options.examples or list(EXAMPLES), options.times, done):
            if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
                break
            found = run(example, busy_loops=options.busy_loops)
            with options.kept.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(asdict(found))}\n")
            print(_row(found), flush=True)
    runs = kept(options.kept)
    if not runs:
        parser.error("no runs are kept; hint: leave out --times 0")
    print(write_result("first-runs", list(report(runs)), hardware=hardware_slug()))


def missing(examples: Sequence[str], times: int, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the examples of which there are fewer runs, in turns."""
    counts = {name: sum(each.example == name for each in runs) for name in examples}
    for number in range(times):
        yield from (name for name in examples if counts[name] <= number)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Have this many processes compute meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def run(example: str, *, busy_loops: int) -> Run:
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
        result = folder / "result.json"
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    printed = ended.stderr if ended.returncode else ended.stdout
    measured = found.get("measured") or {}
    return Run(
        example=example,
        commit=commit(),
        busy_loops=busy_loops,
        exit_code=ended.returncode,
        seconds=seconds,
        load=(load, os.getloadavg()[0]),
        other_processors=other_processors,
        predicted=_times(found.get("predicted") or {}),
        tried=_times(found.get("tried") or {}),
        measured=_times(measured),
        wait_percent=measured.get("processorWaitPercent"),
        steps=found.get("steps"),
        differences=found.get("differences") or (),
        last_lines=[line.strip() for line in printed.decode(errors="replace").splitlines() if line.strip()][
            -SHOWN_LINES:
        ],
    )


def kept(path: Path) -> list[Run]:
    """Return the runs that a file keeps."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Run(**{**values, "load": tuple(values["load"])}) for values in map(json.loads, lines)]


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
    yield f"Commits: {', '.join(dict.fromkeys(each.commit for each in runs))}."
    yield ""
    for loops in sorted({each.busy_loops for each in runs}):
        for example in EXAMPLES:
            those = [each for each in runs if each.busy_loops == loops and each.example == example]
            if those:
                yield f"- {_summary(example, those)}"
    yield from (
        "",
        "| run | busy loops | passed | exit | seconds | load | other work | waited for a processor | step ms |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_row, runs),
        "",
        "| run | expected | ms | measured ms | total | compute | forward | backward | dense | step | within the aims |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    )
    for number, each in enumerate(runs, start=1):
        for name, expected in (("tried", each.tried), ("predicted", each.predicted)):
            if expected and each.measured:
                yield _errors_row(f"{number} {each.example}", name, each, expected)
    yield from ("", "What the runs say of parts that took another time than in the trial:", "")
    yield from (
        f"- {number} {each.example}: {text}" for number, each in enumerate(runs, start=1) for text in each.differences
    )
    yield from ("", "Last lines of each run:")
    for number, each in enumerate(runs, start=1):
        yield from ("", f"{number} {each.example}", "", *(f"    {line}" for line in each.last_lines))


def _row(each: Run) -> str:
    cells = [
        each.example,
        each.busy_loops,
        "yes" if each.has_passed else "**no**",
        each.exit_code,
        f"{each.seconds:.0f}",
        " to ".join(f"{value:.1f}" for value in each.load),
        "" if each.other_processors is None else f"{each.other_processors:.2f}",
        "" if each.wait_percent is None else f"{each.wait_percent} %",
        f"{each.measured['step'] / 1000:.1f}" if "step" in each.measured else "",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _errors_row(name: str, source: str, each: Run, expected: Mapping[str, int]) -> str:
    errors = each.errors(expected)
    totals = [f"{times['total'] / 1000:.2f}" if "total" in times else "" for times in (expected, each.measured)]
    shares = [f"{errors[part]:+.0f} %" if part in errors else "" for part in PARTS]
    return f"| {' | '.join([name, source, *totals, *shares, 'yes' if each.is_within(expected) else 'no'])} |"


def _summary(example: str, runs: Sequence[Run]) -> str:
    loops = runs[0].busy_loops
    passed = sum(each.has_passed for each in runs)
    seconds = [each.seconds for each in runs]
    text = f"`{example}` next to {loops} busy loops" if loops else f"`{example}` without busy loops"
    text += f": {passed} of {len(runs)} passed, in {min(seconds):.0f} to {max(seconds):.0f} s"
    idle = [each for each in runs if each.is_idle]
    if not idle:
        return f"{text}."
    text += f"; of {len(idle)} on an idle machine"
    for name in ("tried", "predicted"):
        those = [(each, each.tried if name == "tried" else each.predicted) for each in idle]
        totals = [abs(each.errors(expected)["total"]) for each, expected in those if "total" in each.errors(expected)]
        within = sum(each.is_within(expected) for each, expected in those)
        if totals:
            text += f", {within} within the aims by {name} times (error of the total {median(totals):.0f} % in the "
            text += f"median, {max(totals):.0f} % at most)"
    if example == "demo":
        text += f", {sum(each.seconds < DEMO_SECONDS for each in idle)} took less than {DEMO_SECONDS} s"
    return f"{text}."


def _times(cost: Mapping[str, Any]) -> dict[str, int]:
    return {name: cost[field] for name, field in PARTS.items() if cost.get(field)}


if __name__ == "__main__":
    main()

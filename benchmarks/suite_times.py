"""Times the test suites: wall and processor time of each command, and the ten slowest files of each suite.

    python -m benchmarks.suite_times test test-processes test-api
    python -m benchmarks.suite_times ci

A word is a target of the Makefile, or `ci` for `.ci/run` as a whole. Each suite writes a JUnit file to build/times. The
time of a file is the sum over its tests, which may run next to other files.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.timed_command import run_timed

ROOT = Path(__file__).parents[1]
TIMES = ROOT / "build" / "times"
NUM_SLOWEST = 10
PACKAGES = ("pytest", "pytest-xdist", "torch", "torchrec")


class Run(NamedTuple):
    """A command that has ended."""

    command: str
    wall_s: float
    processor_s: float
    exit_code: int


def main(words: Sequence[str]) -> int:
    """Run each command, write the result, and return the first exit code that is not 0."""
    if not words:
        sys.exit(__doc__)
    started_at_load = os.getloadavg()[0]
    for old in TIMES.glob("*.xml"):
        old.unlink()
    runs = [run(word) for word in words]
    lines = [
        "# Time of the test suites",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, load {started_at_load:.1f} at the start. One run each.",
        "",
        "| command | wall | processor | exit code |",
        "|---|---|---|---|",
        *(
            f"| `{each.command}` | {minutes(each.wall_s)} | {minutes(each.processor_s)} | {each.exit_code} |"
            for each in runs
        ),
    ]
    for report in sorted(TIMES.glob("*.xml")):
        lines += slowest_files(report)
    print(write_result("suite-times", lines, hardware=hardware_slug(), packages=PACKAGES))
    return next((each.exit_code for each in runs if each.exit_code), 0)


def run(word: str) -> Run:
    """Run a target of the Makefile, or all of `.ci/run`."""
    command = [".ci/run"] if word == "ci" else ["make", word]
    ended, times = run_timed(command, cwd=ROOT, check=False)
    return Run(" ".join(command), times.clock_s, times.processor_s, ended.returncode)


def slowest_files(report: Path) -> list[str]:
    """Return a table of the slowest files of a JUnit file."""
    seconds: dict[str, float] = defaultdict(float)
    tests = Counter[str]()
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest of this checkout wrote it
        name = case.get("classname", "").replace(".", "/") + ".py"
        seconds[name] += float(case.get("time", 0))
        tests[name] += 1
    slowest = sorted(seconds.items(), key=itemgetter(1), reverse=True)[:NUM_SLOWEST]
    head = ["", f"## {report.stem}: {tests.total():,} tests", "", "| file | tests | seconds |", "|---|---|---|"]
    rows = [f"| `{name}` | {tests[name]} | {taken:.1f} |" for name, taken in slowest]
    return head + rows


def minutes(seconds: float) -> str:
    """Return a duration as minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

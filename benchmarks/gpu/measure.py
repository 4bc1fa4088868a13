"""Measure this project's GPU paths on one GPU: `python -m benchmarks.gpu.measure STAGE... [--budget SECONDS]`.

Each stage appends its rows to $OUT/results.jsonl the moment they are known; an error is a row too. With KIT_CPU set the
same code runs on the CPU with tiny sizes, to see that the scripts run. Times are medians in milliseconds.
"""

import argparse
import time
from collections.abc import Callable

from benchmarks.gpu.contracts import contracts
from benchmarks.gpu.correct import correct
from benchmarks.gpu.facts import facts
from benchmarks.gpu.jobs import jobs
from benchmarks.gpu.kernels import drawn, fusion, host, kernels, records
from benchmarks.gpu.rows import attempt, emit, stage
from benchmarks.gpu.speed import speed


def main() -> None:
    """Run stages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each stage that has no end by itself")
    parser.add_argument("--only", default="", help="names of jobs, by commas; default: all")
    parser.add_argument("stages", nargs="+")
    asked = parser.parse_args()
    stages: dict[str, Callable[[], None]] = {
        "facts": facts,
        "contracts": contracts,
        "correct": correct,
        "kernels": lambda: kernels(asked.budget),
        "fusion": lambda: fusion(asked.budget),
        "drawn": lambda: drawn(asked.budget),
        "records": lambda: records(asked.budget),
        "host": host,
        "jobs": lambda: jobs(asked.budget, asked.only),
        "speed": speed,
    }
    for name in asked.stages:
        stage[0] = name
        begun = time.monotonic()
        succeeded = attempt(name, stages[name])
        emit(finished=name, failed=not succeeded, seconds=round(time.monotonic() - begun, 1))


if __name__ == "__main__":
    main()

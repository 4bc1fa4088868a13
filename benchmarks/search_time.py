"""Measures how long the search takes and how much memory, up to 10,000 tables on 1,024 devices.

    OMP_NUM_THREADS=1 python -m benchmarks.search_time [--reference-tasks 100]

Every point runs in a process of its own, whose largest resident memory counts. Writes
benchmarks/results/search-time_<hardware>_<date>.md.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from neuroshard_api.request import Algorithm
from neuroshard_planner.costs.bundle_store import bundled_bundle
from neuroshard_planner.problem import Problem
from neuroshard_planner.search import plan

from benchmarks.reference_search import reference_search
from benchmarks.results_file import write_result
from benchmarks.tasks import (
    DEVICE_TYPE,
    SEED,
    draw_pool,
    roomy_request,
    sampled_tables,
    task_tables,
    weights_only_request,
)

REFERENCE_SECONDS = {
    (10, 4): 1.1,
    (20, 4): 3.2,
    (40, 4): 3.9,
    (60, 4): 6.0,
    (40, 8): 6.2,
    (60, 8): 15.6,
    (100, 8): 19.5,
    (200, 8): 27.5,
    (400, 8): 78.4,
    (100, 16): 16.2,
    (200, 16): 51.1,
    (400, 16): 98.9,
}
"""Seconds of the published code's search by tables and devices, one core, measured elsewhere on its own tables."""
SCALE = ((100, 8), (300, 32), (1_000, 128), (3_000, 256), (10_000, 1_024))
LIMITS = {(1_000, 128): "5 s", (10_000, 1_024): "60 s, 2 GB"}
DEVICES_PER_NODE = 8
REPEATS = 3
SUFFICIENT_RATIO = 100.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size."""

    num_tables: int
    num_devices: int
    seconds: tuple[float, ...]
    """Whole `plan` calls."""
    peak_bytes: int
    """Largest resident memory of the process, Python and its packages included."""
    predicted_ms: float
    best_greedy_ms: float | None
    gap: float


def measure(num_tables: int, num_devices: int) -> Point:
    """Plan a set of this size several times."""
    tables = sampled_tables(draw_pool(), num_tables, np.random.default_rng(SEED), name=f"{num_tables} tables")
    request = roomy_request(tables, num_devices, devices_per_node=min(num_devices, DEVICES_PER_NODE))
    bundle = bundled_bundle(DEVICE_TYPE)
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        found = plan(request, bundle=bundle)
        seconds.append(time.process_time() - start)
    greedy = [
        each.total_ms
        for each in found.baselines
        if each.total_ms is not None and each.algorithm is not Algorithm.RANDOM
    ]
    return Point(
        num_tables=num_tables,
        num_devices=num_devices,
        seconds=tuple(seconds),
        peak_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        predicted_ms=found.predicted.total_ms,
        best_greedy_ms=min(greedy, default=None),
        gap=found.gap,
    )


def measured_apart(num_tables: int, num_devices: int) -> Point:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.search_time", "--point", str(num_tables), str(num_devices)]
    answer = subprocess.run(  # noqa: S603 - this module itself
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    point = Point(**json.loads(answer.stdout))
    print(f"{num_tables} x {num_devices}: {median(point.seconds):.3f} s", file=sys.stderr)
    return point


def reference_lines() -> list[str]:
    """Return the comparison with the published code's times."""
    lines = [
        "",
        "## Beside the reference's times",
        "",
        "The reference's seconds were measured on another machine and other tables of the same numbers: read the ratio",
        "as an order of magnitude. Seconds: a whole `plan` call with its baselines and lower bound, processor time of",
        f"one thread, median of {REPEATS} (least to most).",
        "",
        "| tables | devices | reference s | ours s | ratio | gain over the best greedy | gap to the lower bound |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for (num_tables, num_devices), reference in REFERENCE_SECONDS.items():
        point = measured_apart(num_tables, num_devices)
        ratios.append(reference / median(point.seconds))
        lines.append(
            f"| {num_tables} | {num_devices} | {reference} | {_seconds(point)} | {ratios[-1]:.0f} "
            f"| {_gain(point)} | {point.gap:.1%} |"
        )
    enough = sum(ratio >= SUFFICIENT_RATIO for ratio in ratios)
    least, middle = min(ratios), median(ratios)
    lines += [
        "",
        f"Ratio: least {least:.0f}, median {middle:.0f}; {SUFFICIENT_RATIO:.0f} or more at {enough} of {len(ratios)}.",
    ]
    return lines


def scale_lines() -> list[str]:
    """Return the scaling curve."""
    lines = [
        "",
        "## Scale",
        "",
        f"Nodes of {DEVICES_PER_NODE} devices. Memory: the process's peak, Python and its packages included.",
        "",
        "| tables | devices | seconds | peak memory | limit | gain over the best greedy | gap to the lower bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for num_tables, num_devices in SCALE:
        point = measured_apart(num_tables, num_devices)
        limit = LIMITS.get((num_tables, num_devices), "")
        lines.append(
            f"| {num_tables:,} | {num_devices:,} | {_seconds(point)} | {point.peak_bytes / 1e9:.2f} GB | {limit} "
            f"| {_gain(point)} | {point.gap:.1%} |"
        )
    return lines


def algorithm_lines(num_tasks: int, num_devices: int) -> list[str]:
    """Return the comparison with the published algorithm under the same networks, on the first tasks."""
    bundle = bundled_bundle(DEVICE_TYPE)
    costs, times, missed = [], [], 0
    for tables in task_tables()[:num_tasks]:
        request = weights_only_request(tables, num_devices)
        start = time.process_time()
        ours_ms = plan(request, bundle=bundle).predicted.total_ms
        middle = time.process_time()
        problem = Problem(request, bundle)
        placement = reference_search(problem)
        end = time.process_time()
        times.append((end - middle) / (middle - start))
        if placement is None:
            missed += 1
        else:
            costs.append(ours_ms / float(problem.total_ms([placement])[0]))
        print(f"{tables.name}: cost {costs[-1:]}, time {times[-1]:.0f}", file=sys.stderr)
    return [
        "",
        f"## The published algorithm under the same networks, {num_devices} devices",
        "",
        f"benchmarks/reference_search.py on {num_tasks} tasks (weights-only memory). It found no plan for {missed}.",
        "",
        "| | least | quartile | median | quartile | most |",
        "|---|---|---|---|---|---|",
        "| our predicted cost / its predicted cost | " + _quantiles(costs, ".4f") + " |",
        "| its seconds / our seconds | " + _quantiles(times, ".0f") + " |",
        "",
        f"Ours costs more on {sum(cost > 1 + 1e-6 for cost in costs)} of {len(costs)} tasks.",
    ]


def _quantiles(values: Sequence[float], form: str) -> str:
    return " | ".join(format(float(each), form) for each in np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0]))


def _seconds(point: Point) -> str:
    return f"{median(point.seconds):.3f} ({min(point.seconds):.3f} to {max(point.seconds):.3f})"


def _gain(point: Point) -> str:
    return "-" if point.best_greedy_ms is None else f"{1 - point.predicted_ms / point.best_greedy_ms:.1%}"


CAVEATS = [
    "# Time and memory of the search",
    "",
    "Read first: tables are drawn from the pool of the task distribution (task-pool), with repeats above 856. A device",
    "has 1.25 times an even share of the memory needed, 4 GB at least. Costs are predicted, by networks trained on the",
    "simulator.",
]


def main() -> None:
    """Measure one point, or everything and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--point", nargs=2, type=int, metavar=("TABLES", "DEVICES"), help="print one point as JSON")
    parser.add_argument("--reference-tasks", type=int, default=100, help="tasks for the published algorithm")
    arguments = parser.parse_args()
    if arguments.point:
        print(json.dumps(asdict(measure(*arguments.point))))
        return
    lines = [*CAVEATS, *reference_lines(), *scale_lines()]
    for num_devices in (4, 8):
        lines += algorithm_lines(arguments.reference_tasks, num_devices)
    print(write_result("search-time", lines))


if __name__ == "__main__":
    main()

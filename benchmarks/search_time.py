"""Measures how long the search takes and how much memory, up to 10,000 tables on 1,024 devices.

    OMP_NUM_THREADS=1 python -m benchmarks.search_time [--sections default-types ...] [--reference-tasks 100]

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
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.problem import Problem

from benchmarks.reference_search import reference_search
from benchmarks.results_file import write_result
from benchmarks.tasks import (
    DEVICE_TYPE,
    SEED,
    draw_pool,
    of_default_types,
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
DEFAULT_SCALE = ((26, 16), (100, 8), (300, 32), (1_000, 128), (10_000, 1_024))
LIMITS = {(1_000, 128): "3 s", (10_000, 1_024): "60 s, 0.5 GB"}
DEFAULT_LIMITS = {(26, 16): "0.5 s", (1_000, 128): "2.5 s, 0.25 GB", (10_000, 1_024): "90 s"}
DEFAULT_SETS = 5
"""Of each size but the last: how far a set is from its lower bound decides how long it is searched."""
SECTIONS = ("reference", "columns", "default-types", "algorithm")
DEVICES_PER_NODE = 8
REPEATS = 3
REFERENCE_REPEATS = 2
REACHED_REPEATS = 5  # of the shortest times, which other work on the machine disturbs most
MOST_REPEATED_TABLES = 3_000  # larger sets are planned once
WORK_BUDGETS = (500, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000, 8_000, 12_000, 16_000, 24_000, 32_000, None)
"""Tried in this order until the published algorithm's cost is reached; None is the default."""
SUFFICIENT_RATIO = 100.0
COLUMNS = (
    *("tables", "devices", "published", "rewritten", "equal cost", "default", "by the clock"),
    *("published / equal", "rewritten / equal", "published / default", "gain", "gap"),
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size."""

    num_tables: int
    num_devices: int
    seconds: tuple[float, ...]
    """Processor time of whole `plan` calls."""
    clock_seconds: tuple[float, ...]
    """The same calls by the clock, which other work on the machine lengthens."""
    peak_bytes: int
    """Largest resident memory of the process, Python and its packages included."""
    predicted_ms: float
    best_greedy_ms: float | None
    gap: float
    seconds_to_reference: float | None = None
    """Of the first of WORK_BUDGETS at which `plan` costs no more than the published algorithm's placement, at least."""
    reference_seconds: float | None = None
    """Of the published algorithm as rewritten for this benchmark, on this machine."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """The published algorithm and ours on one request, under the same networks."""

    reference_ms: float | None
    """None: it found no plan."""
    reference_seconds: float
    costs_ms: tuple[float, ...]
    """Ours for the WORK_BUDGETS tried, and the default's at the end."""
    seconds: tuple[float, ...]
    """Of each; of the one that reaches the reference's cost, the least of several times."""
    reached: int | None
    """The first budget that is not dearer than the reference."""

    @property
    def seconds_to_reference(self) -> float | None:
        """Our time to a plan that costs no more than the reference's."""
        return None if self.reached is None else self.seconds[self.reached]


def race(request: PlanRequest, bundle: CostBundle) -> Race:
    """Measure both; ours with growing budgets until it is not dearer, then with the default."""
    spent_s = []
    for _ in range(REFERENCE_REPEATS):
        problem = Problem(request, bundle)
        start = time.process_time()
        placement = reference_search(problem)
        spent_s.append(time.process_time() - start)
    reference_ms = None if placement is None else float(problem.total_ms([placement])[0])
    costs, seconds, reached = [], [], None
    for turn, budget in enumerate(WORK_BUDGETS):
        if reached is not None and budget is not None:
            continue
        search = request.search.model_copy(update={"work_budget": budget})
        tried = request.model_copy(update={"search": search})
        cost_ms, spent = _timed(tried, bundle)
        if reached is None and reference_ms is not None and cost_ms <= reference_ms * (1 + 1e-6):
            reached = turn
            spent = min(spent, *(_timed(tried, bundle)[1] for _ in range(REACHED_REPEATS - 1)))
        costs.append(cost_ms)
        seconds.append(spent)
    return Race(
        reference_ms=reference_ms,
        reference_seconds=min(spent_s),
        costs_ms=tuple(costs),
        seconds=tuple(seconds),
        reached=reached,
    )


def _timed(request: PlanRequest, bundle: CostBundle) -> tuple[float, float]:
    """Return the cost of a plan and the processor time that it took."""
    start = time.process_time()
    cost_ms = plan(request, bundle=bundle).predicted.total_ms
    return cost_ms, time.process_time() - start


def measure(num_tables: int, num_devices: int, *, seed: int, with_reference: bool, with_all_types: bool) -> Point:
    """Plan a set of this size several times, by columns or in all types; the published algorithm cuts by columns."""
    tables = sampled_tables(draw_pool(), num_tables, np.random.default_rng(seed), name=f"{num_tables} tables")
    request = roomy_request(tables, num_devices, devices_per_node=min(num_devices, DEVICES_PER_NODE))
    request = of_default_types(request) if with_all_types else request
    bundle = bundled_bundle(DEVICE_TYPE)
    seconds, clock_seconds = [], []
    for _ in range(REPEATS if num_tables <= MOST_REPEATED_TABLES else 1):
        start, clock_start = time.process_time(), time.perf_counter()
        found = plan(request, bundle=bundle)
        seconds.append(time.process_time() - start)
        clock_seconds.append(time.perf_counter() - clock_start)
    greedy = [
        each.total_ms
        for each in found.baselines
        if each.total_ms is not None and each.algorithm is not Algorithm.RANDOM
    ]
    raced = race(request, bundle) if with_reference else None
    return Point(
        num_tables=num_tables,
        num_devices=num_devices,
        seconds=tuple(seconds),
        clock_seconds=tuple(clock_seconds),
        peak_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        predicted_ms=found.predicted.total_ms,
        best_greedy_ms=min(greedy, default=None),
        gap=found.gap,
        seconds_to_reference=raced.seconds_to_reference if raced else None,
        reference_seconds=raced.reference_seconds if raced else None,
    )


def measured_apart(
    num_tables: int, num_devices: int, *, seed: int = SEED, with_reference: bool = False, with_all_types: bool = False
) -> Point:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.search_time", "--point", str(num_tables), str(num_devices)]
    command += ["--seed", str(seed)]
    command += [*(["--race"] if with_reference else []), *(["--all-types"] if with_all_types else [])]
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
        "## Next to the reference's times",
        "",
        "Published: seconds of the published code, measured on another machine and other tables of the same numbers:",
        "read the ratios to them as orders of magnitude. Rewritten: the published algorithm as rewritten for this",
        "benchmark (the 11 dimension limits side by side, costs by this planner's networks), on this machine. Ours: a",
        "whole `plan` call with its baselines and lower bound; equal cost: with the least of the work budgets",
        ", ".join(f"{budget:,}" for budget in WORK_BUDGETS if budget) + " and the default at which our plan costs no",
        "more than the algorithm's. All in seconds of one thread's processor time, which other work on the machine",
        f"raises: rewritten is the least of {REFERENCE_REPEATS} runs, equal cost of {REACHED_REPEATS}, default the",
        f"median of {REPEATS} (least to most), and the median by the clock.",
        "Gain: over the best greedy; gap: to the lower bound.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    at_equal_cost, at_default = [], []
    for (num_tables, num_devices), published in REFERENCE_SECONDS.items():
        point = measured_apart(num_tables, num_devices, with_reference=True)
        at_default.append(published / median(point.seconds))
        equal, rewritten = point.seconds_to_reference, point.reference_seconds
        assert rewritten is not None
        if equal is not None:
            at_equal_cost.append(published / equal)
        lines.append(
            f"| {num_tables} | {num_devices} | {published} | {rewritten:.2f} | {_or_dash(equal, '.3f')} "
            f"| {_seconds(point)} | {median(point.clock_seconds):.3f} "
            f"| {_or_dash(equal and published / equal, '.0f')} | {_or_dash(equal and rewritten / equal, '.0f')} "
            f"| {at_default[-1]:.0f} | {_gain(point)} | {point.gap:.1%} |"
        )
    enough = sum(ratio >= SUFFICIENT_RATIO for ratio in at_equal_cost)
    lines += [
        "",
        f"Published seconds over ours at equal cost: least {min(at_equal_cost):.0f}, median",
        f"{median(at_equal_cost):.0f}; {SUFFICIENT_RATIO:.0f} or more at {enough} of {len(REFERENCE_SECONDS)} sizes.",
        "At the default budget: least",
        f"{min(at_default):.0f}, median {median(at_default):.0f}; the default spends the time on a lower cost.",
    ]
    return lines


def columns_lines() -> list[str]:
    """Return the scaling curve of tables whole or cut by columns."""
    lines = [
        "",
        "## Scale, tables whole or cut by columns",
        "",
        f"Nodes of {DEVICES_PER_NODE} devices. Memory: the process's peak, Python and its packages included. More than",
        f"{MOST_REPEATED_TABLES:,} tables: one run.",
        "Gain: over the best greedy; gap: to the lower bound.",
        "",
        "| tables | devices | seconds | by the clock | peak memory | limit | gain | gap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for num_tables, num_devices in SCALE:
        point = measured_apart(num_tables, num_devices)
        limit = LIMITS.get((num_tables, num_devices), "")
        lines.append(
            f"| {num_tables:,} | {num_devices:,} | {_seconds(point)} "
            f"| {median(point.clock_seconds):.3f} | {point.peak_bytes / 1e9:.2f} GB | {limit} "
            f"| {_gain(point)} | {point.gap:.1%} |"
        )
    return lines


def default_lines() -> list[str]:
    """Return the scaling curve of all types, over several sets of each size."""
    lines = [
        "",
        "## Scale, all types (the default)",
        "",
        f"Nodes of {DEVICES_PER_NODE} devices. {DEFAULT_SETS} sets of each size but the last, seeds from {SEED}:",
        "median (least to most) of their processor times, each the median of its runs; how far a set is from its lower",
        "bound decides how long it is searched. The last is searched by columns alone, as all sets of its size are.",
        "Memory: the largest peak of a process, Python and its packages included. Gap: to the lower bound.",
        "",
        "| tables | devices | sets | seconds | by the clock | peak memory | limit | gap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for num_tables, num_devices in DEFAULT_SCALE:
        seeds = range(SEED, SEED + (1 if num_tables > MOST_REPEATED_TABLES else DEFAULT_SETS))
        points = [measured_apart(num_tables, num_devices, seed=seed, with_all_types=True) for seed in seeds]
        seconds, gaps = [median(point.seconds) for point in points], [point.gap for point in points]
        clock_s = median(median(point.clock_seconds) for point in points)
        peak_bytes = max(point.peak_bytes for point in points)
        lines.append(
            f"| {num_tables:,} | {num_devices:,} | {len(points)} "
            f"| {median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) | {clock_s:.2f} "
            f"| {peak_bytes / 1e9:.2f} GB | {DEFAULT_LIMITS.get((num_tables, num_devices), '')} "
            f"| {median(gaps):.1%} ({min(gaps):.1%} to {max(gaps):.1%}) |"
        )
    return lines


def algorithm_lines(num_tasks: int, num_devices: int) -> list[str]:
    """Return the comparison with the published algorithm under the same networks, on the first tasks."""
    bundle = bundled_bundle(DEVICE_TYPE)
    races = []
    for tables in task_tables()[:num_tasks]:
        races.append(race(weights_only_request(tables, num_devices), bundle))
        print(f"{tables.name}: {races[-1]}", file=sys.stderr)
    both = [(each, each.reference_ms) for each in races if each.reference_ms is not None]
    costs = [each.costs_ms[-1] / reference_ms for each, reference_ms in both]
    slower = [each.reference_seconds / each.seconds[-1] for each, _ in both]
    to_equal = [
        each.reference_seconds / each.seconds_to_reference for each, _ in both if each.seconds_to_reference is not None
    ]
    return [
        "",
        f"## The published algorithm under the same networks, {num_devices} devices",
        "",
        f"benchmarks/reference_search.py on {num_tasks} tasks (weights-only memory), on this machine. It found no plan",
        f"for {len(races) - len(both)} of them, where the search here found one.",
        "",
        "| | least | quartile | median | quartile | most |",
        "|---|---|---|---|---|---|",
        "| our predicted cost / its predicted cost, default budget | " + _quantiles(costs, ".4f") + " |",
        "| its seconds / our seconds, default budget | " + _quantiles(slower, ".1f") + " |",
        f"| its seconds / our seconds to its cost ({len(to_equal)} tasks) | " + _quantiles(to_equal, ".1f") + " |",
        "",
        f"At the default budget ours costs more on {sum(cost > 1 + 1e-6 for cost in costs)} of {len(costs)} tasks.",
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


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
    parser.add_argument("--seed", type=int, default=SEED, help="with --point: of the set")
    parser.add_argument("--race", action="store_true", help="with --point: run the published algorithm too")
    parser.add_argument("--all-types", action="store_true", help="with --point: in all types, not by columns alone")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="parts of the result")
    parser.add_argument("--reference-tasks", type=int, default=100, help="tasks for the published algorithm")
    arguments = parser.parse_args()
    if arguments.point:
        found = measure(
            *arguments.point, seed=arguments.seed, with_reference=arguments.race, with_all_types=arguments.all_types
        )
        print(json.dumps(asdict(found)))
        return
    lines = [*CAVEATS]
    if "reference" in arguments.sections:
        lines += reference_lines()
    if "columns" in arguments.sections:
        lines += columns_lines()
    if "default-types" in arguments.sections:
        lines += default_lines()
    if "algorithm" in arguments.sections:
        for num_devices in (4, 8):
            lines += algorithm_lines(arguments.reference_tasks, num_devices)
    print(write_result("search-time", lines))


if __name__ == "__main__":
    main()

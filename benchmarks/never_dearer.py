"""Whether the search is ever dearer than the published algorithm: tasks of the paper's kind with fresh seeds.

    OMP_NUM_THREADS=1 python -m benchmarks.never_dearer [--tasks 120] [--processes 2]

Both are judged by the same cost networks; only costs are compared, so that other load on the machine does not matter.
Writes benchmarks/results/never-dearer_any_<date>.md.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import NamedTuple

import numpy as np
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.search.local_search import merged

from benchmarks.reference_search import reference_search
from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, FEWEST_TABLES, MOST_TABLES, draw_pool, sampled_tables, weights_only_request

DEVICE_COUNTS = (4, 8, 16)
FIRST_SEED = 7_300_000
"""Of the tasks; other benchmarks have others, and so had the tasks that the search was developed with."""
EQUAL = 1e-6
"""Relative; smaller differences are the rounding of single precision."""


class Gain(NamedTuple):
    """By which share the plan is cheaper than the published algorithm's placement."""

    as_placed: float
    as_merged: float
    """The same, with the placement's shards of one table on one device made one, as in all plans here."""


def gain(seed: int, num_devices: int) -> Gain | None:
    """Plan one task both ways; print the gain as progress. None: the published algorithm found no plan."""
    generator = np.random.default_rng(seed)
    num_tables = int(generator.integers(FEWEST_TABLES, MOST_TABLES + 1))
    tables = sampled_tables(draw_pool(), num_tables, generator, name=f"task {seed}")
    request = weights_only_request(tables, num_devices)
    bundle = bundled_bundle(DEVICE_TYPE)
    problem = Problem(request, bundle)
    placement = reference_search(problem)
    if placement is None:
        return None
    try:
        found_ms = plan(request, bundle=bundle).predicted.total_ms
    except InfeasibleError:
        found_ms = np.inf
    placed_ms, merged_ms = problem.total_ms([placement, merged(problem, placement)]).tolist()
    found = Gain(1 - found_ms / placed_ms, 1 - found_ms / merged_ms)
    sys.stderr.write(f"{num_devices} devices, seed {seed}: {found.as_placed:.4%}, merged {found.as_merged:.4%}\n")
    return found


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=120, help="in all, divided among the numbers of devices")
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICE_COUNTS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--processes", type=int, default=1, help="that share the tasks")
    arguments = parser.parse_args()
    lines = [
        "# Never dearer than the published algorithm",
        "",
        f"Tasks of the paper's kind ({FEWEST_TABLES} to {MOST_TABLES} tables), seeds from {arguments.first_seed}.",
        f"Costs by the bundled networks of {DEVICE_TYPE}; a gain of 1 % is a plan that costs 1 % less. Default",
        "settings, the tolerance for fewer shards included. Tasks for which the published algorithm finds no plan are",
        "left out. It may put two shards of a table on one device, which no plan here does; dearer (merged) counts the",
        "plans that cost more than its placement after such shards were merged.",
        "",
        "| devices | tasks | dearer | dearer (merged) | equal | median gain | least gain | largest gain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    count = arguments.tasks // len(arguments.devices)
    seeds = iter(range(arguments.first_seed, arguments.first_seed + arguments.tasks))
    tasks = [(next(seeds), num_devices) for num_devices in arguments.devices for _ in range(count)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = dict(zip(tasks, pool.map(gain, *zip(*tasks, strict=True)), strict=True))
    for num_devices in arguments.devices:
        both = [each for (_, devices), each in found.items() if devices == num_devices and each is not None]
        gains = [each.as_placed for each in both]
        dearer_than_merged = sum(each.as_merged < -EQUAL for each in both)
        dearer = sum(each < -EQUAL for each in gains)
        equal = sum(abs(each) <= EQUAL for each in gains)
        lines.append(
            f"| {num_devices} | {len(gains)} | {dearer} | {dearer_than_merged} | {equal} "
            f"| {median(gains):.2%} | {min(gains):.2%} | {max(gains):.2%} |"
        )
    write_result("never-dearer", lines, hardware="any")


if __name__ == "__main__":
    main()

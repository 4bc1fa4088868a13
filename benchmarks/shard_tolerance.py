"""What a tolerance for fewer shards gives up and gains: the measurement of docs/design/0006.

    OMP_NUM_THREADS=1 python -m benchmarks.shard_tolerance [--tasks 18]

Each problem is planned once per tolerance. Costs are relative to the plan of tolerance 0: by the networks, by the
device simulator, and by the networks where pooling factors and skews are up to 30 % off. Writes
benchmarks/results/shard-tolerance_any_<date>.md.
"""

import argparse
import sys
from collections.abc import Iterator
from statistics import mean, median

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_planner.bound.family_bounds import FamilyBounds
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.planning import attempts, find
from neuroshard_planner.problem.plan_cost import predicted_cost, simulated_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.workload_store import read_workload
from neuroshard_report.explain.robustness import DEVIATION, costs_under_other_traffic

from benchmarks.results_file import write_result
from benchmarks.tasks import (
    DEVICE_TYPE,
    FEWEST_TABLES,
    MOST_TABLES,
    by_columns,
    draw_pool,
    sampled_tables,
    weights_only_request,
    workload_request,
)

WORKLOADS = (
    ("criteo-kaggle", 4),
    ("mlperf-dlrm-dcnv2", 8),
    ("mlperf-dlrm-dcnv2", 16),
    ("mlperf-dlrm-v1", 8),
    ("nvidia-synthetic-tiny", 4),
    ("nvidia-synthetic-small", 8),
    ("nvidia-synthetic-criteo", 8),
    ("hugectr-embark-180-table-70b", 8),
    ("hugectr-embark-180-table-70b", 16),
)
DEVICE_COUNTS = (4, 8, 16)
DEVICES_PER_NODE = 8
FIRST_SEED = 9_300_000
TOLERANCES = (0.0005, 0.001, 0.0025, 0.005)
NUM_DRAWS = 4
Figures = tuple[float, float, float, float]
"""Shards, and predicted, simulated, and median cost under other traffic in milliseconds."""


def problems(num_tasks: int) -> Iterator[PlanRequest]:
    """Give the public workloads, and tasks of the paper's kind."""
    for name, num_devices in WORKLOADS:
        nodes = {"devices_per_node": min(num_devices, DEVICES_PER_NODE)}
        yield by_columns(workload_request(read_workload(name), num_devices, **nodes))
    for task in range(num_tasks):
        generator = np.random.default_rng(FIRST_SEED + task)
        num_tables = int(generator.integers(FEWEST_TABLES, MOST_TABLES + 1))
        tables = sampled_tables(draw_pool(), num_tables, generator, name=f"task {task}")
        yield weights_only_request(tables, DEVICE_COUNTS[task % len(DEVICE_COUNTS)])


def figures(request: PlanRequest, bundle: CostBundle, tolerance: float) -> Figures:
    """Plan with a tolerance. Raises InfeasibleError."""
    search = request.search.model_copy(update={"shard_tolerance": tolerance})
    problem = Problem(request.model_copy(update={"search": search}), bundle)
    found = find(problem, baselines=attempts(problem), bounds=FamilyBounds(problem)).placement
    return (
        float(len(found.kinds)),
        predicted_cost(problem, found, bundle.manifest.source).total_ms,
        simulated_cost(problem, found).total_ms,
        median(costs_under_other_traffic(problem, found, num_draws=NUM_DRAWS)),
    )


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=18)
    bundle = bundled_bundle(DEVICE_TYPE)
    changes: dict[float, list[list[float]]] = {tolerance: [] for tolerance in TOLERANCES}
    for request in problems(parser.parse_args().tasks):
        try:
            without = figures(request, bundle, 0.0)
        except InfeasibleError:
            continue  # a task of the paper's kind may not fit its memory
        for tolerance, rows in changes.items():
            found = figures(request, bundle, tolerance)
            rows.append([mine / theirs - 1 for mine, theirs in zip(found, without, strict=True)])
        print(f"{request.tables.name}, {request.topology.num_devices} devices", file=sys.stderr)
    lines = [
        "# Fewer shards within a tolerance",
        "",
        f"Mean change over {len(changes[TOLERANCES[0]])} problems against the plan of tolerance 0: public workloads,",
        f"tasks of the paper's kind on {', '.join(map(str, DEVICE_COUNTS))} devices. Costs by the bundled networks of",
        f"{DEVICE_TYPE} and by its simulator; other traffic: pooling factors and skews up to {DEVIATION:.0%} off,",
        f"median of {NUM_DRAWS} draws.",
        "",
        "| tolerance | shards | predicted cost | simulated cost | median cost under other traffic |",
        "|---|---|---|---|---|",
    ]
    for tolerance, rows in changes.items():
        means = [mean(column) for column in zip(*rows, strict=True)]
        lines.append(
            f"| {tolerance:.2%} | {means[0]:+.1%} | " + " | ".join(f"{each:+.2%}" for each in means[1:]) + " |"
        )
    print(write_result("shard-tolerance", lines, hardware="any"))


if __name__ == "__main__":
    main()

"""What placements of all families cost next to placements by columns alone: public workloads on nodes of 8 devices.

    OMP_NUM_THREADS=1 python -m benchmarks.mixed_placements

Only costs are compared, and processor time of one thread is given. Writes
benchmarks/results/mixed-placements_<hardware>_<date>.md.
"""

import sys
import time
from collections import Counter
from math import isfinite
from statistics import median
from typing import NamedTuple

from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import simulated_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.workload_store import read_workload

from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, workload_request

WORKLOADS = (
    "criteo-kaggle",
    "hugectr-embark-7-table-470b",
    "mlperf-dlrm-dcnv2",
    "mlperf-dlrm-v1",
    "nvidia-synthetic-criteo",
    "nvidia-synthetic-tiny",
)
NODE_COUNTS = (1, 2, 8)
DEVICES_PER_NODE = 8
BATCH_SIZE_PER_DEVICE = 8192


class Outcome(NamedTuple):
    """A plan; infinite where there is none."""

    simulated_ms: float
    gap: float
    """To the lower bound of all types, by the networks."""
    seconds: float
    types: str


def outcome(request: PlanRequest, bundle: CostBundle) -> Outcome:
    """Plan a request and judge the plan by the simulator without noise."""
    start = time.process_time()
    try:
        found = plan(request, bundle=bundle)
    except InfeasibleError:
        return Outcome(float("inf"), float("inf"), time.process_time() - start, "no plan fits")
    seconds = time.process_time() - start
    problem = Problem(request, bundle)
    cost = simulated_cost(problem, placement_of(found.tables, problem))
    types = Counter(table.sharding_type.value for table in found.tables)
    return Outcome(
        cost.total_ms, found.gap, seconds, ", ".join(f"{count} {name}" for name, count in types.most_common())
    )


def shown(value: float, form: str) -> str:
    """Return a number, or a dash where there is none."""
    return format(value, form) if isfinite(value) else "-"


def main() -> None:
    """Measure and write the result."""
    bundle = bundled_bundle(DEVICE_TYPE)
    lines = [
        "# Placements of all families",
        "",
        f"Public workloads, {BATCH_SIZE_PER_DEVICE} samples per device, on nodes of {DEVICES_PER_NODE} {DEVICE_TYPE}:",
        "plans by columns alone, and plans of all types. Milliseconds of the embedding",
        "part of a step by the simulator without noise; none is measured on a GPU. Seconds are processor time of a",
        "whole `plan` call.",
        "",
        "| workload | nodes | by columns | all types | gain | to bound | tables by type | seconds | all types |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    gaps: list[float] = []
    for name in WORKLOADS:
        for num_nodes in NODE_COUNTS:
            devices = num_nodes * DEVICES_PER_NODE
            request = workload_request(read_workload(name), devices, devices_per_node=DEVICES_PER_NODE).model_copy(
                update={"batch_size_per_device": BATCH_SIZE_PER_DEVICE}
            )
            columns, mixed = (
                outcome(request.model_copy(update={"constraints": Constraints(sharding_types=types)}), bundle)
                for types in (BY_COLUMNS, tuple(ShardingType))
            )
            gain = 1 - mixed.simulated_ms / columns.simulated_ms if isfinite(columns.simulated_ms) else float("nan")
            lines.append(
                f"| {name} | {num_nodes} | {shown(columns.simulated_ms, '.3f')} | {shown(mixed.simulated_ms, '.3f')} "
                f"| {shown(gain, '.1%')} | {shown(mixed.gap, '.1%')} "
                f"| {mixed.types} | {columns.seconds:.2f} | {mixed.seconds:.2f} |"
            )
            sys.stderr.write(lines[-1] + "\n")
            gaps += [mixed.gap] if isfinite(mixed.gap) else []
    lines += ["", f"Gap of plans of all types to their lower bound: median {median(gaps):.1%}, most {max(gaps):.1%}."]
    write_result("mixed-placements", lines)


if __name__ == "__main__":
    main()

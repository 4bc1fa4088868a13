"""What plans lose when traffic is not what they were made for, next to the baselines.

    OMP_NUM_THREADS=1 python -m benchmarks.robustness [--draws 12]

Each draw has pooling factors and skews up to 30 % off. The regret of a plan in a draw is its cost there over the cost
of a plan searched for that draw, less 1. Costs are those of the bundled networks. Writes
benchmarks/results/robustness_any_<date>.md.
"""

import argparse
from statistics import median

from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_planner.bound.family_bounds import FamilyBounds
from neuroshard_planner.pipeline import plan
from neuroshard_planner.planning import attempts, find
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.workload_store import read_workload
from neuroshard_report.explain.robustness import DEVIATION, other_traffic, total_under

from benchmarks.results_file import write_result

DEVICE_TYPE = "h100-80gb"
CASES = (
    ("mlperf-dlrm-dcnv2", 8),
    ("mlperf-dlrm-v1", 8),
    ("criteo-kaggle", 4),
    ("nvidia-synthetic-tiny", 4),
    ("nvidia-synthetic-small", 8),
    ("hugectr-embark-180-table-70b", 8),
)


def workload_request(name: str, num_devices: int) -> PlanRequest:
    """Return a public workload on one node."""
    tables = read_workload(name)
    found = PlanRequest(
        tables=tables,
        topology=preset(DEVICE_TYPE).topology(num_nodes=1, devices_per_node=num_devices),
        batch_size_per_device=-(-(tables.global_batch_size or 65536) // num_devices),
    )
    return found if tables.optimizer is None else found.model_copy(update={"optimizer": tables.optimizer})


def regrets(request: PlanRequest, bundle: CostBundle, num_draws: int) -> dict[str, list[float]]:
    """Return the regrets over the draws of the plan and of each baseline that found one."""
    problem = Problem(request, bundle)
    baselines = attempts(problem)
    placements = {Algorithm.NEUROSHARD: find(problem, baselines=baselines, bounds=FamilyBounds(problem)).placement}
    placements |= {name: each for name, each in baselines.items() if isinstance(each, Placement)}
    found: dict[str, list[float]] = {name.value: [] for name in placements}
    for drawn in other_traffic(request, num_draws=num_draws):
        best_ms = plan(drawn, bundle=bundle).predicted.total_ms
        for name, placement in placements.items():
            found[name.value].append(total_under(drawn, problem, placement) / best_ms - 1)
    return found


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=12)
    num_draws = parser.parse_args().draws
    bundle = bundled_bundle(DEVICE_TYPE)
    lines = [
        "# Plans under traffic that they were not made for",
        "",
        f"{num_draws} draws each, pooling factors and skews up to {DEVIATION:.0%} off; costs by the bundled networks",
        f"of {DEVICE_TYPE}. Regret: cost over that of a plan searched for the draw, less 1; median and worst draw.",
        "",
        "| workload | devices | neuroshard | worst | best baseline by median | median | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, num_devices in CASES:
        found = regrets(workload_request(name, num_devices), bundle, num_draws)
        own = found.pop(Algorithm.NEUROSHARD.value)
        best = min(found, key=lambda each: median(found[each]))
        lines.append(
            f"| {name} | {num_devices} | {median(own):.1%} | {max(own):.1%} | {best} | {median(found[best]):.1%} | "
            f"{max(found[best]):.1%} |"
        )
    write_result("robustness", lines, hardware="any")


if __name__ == "__main__":
    main()

"""How near plans are to the best that is known: the default search next to long searches from several seeds.

    OMP_NUM_THREADS=1 python -m benchmarks.long_searches [--seeds 2] [--work 250000]

A long search has five times the work, more starts, and random changes for as long as one of a thousand helps. What a
plan costs above the best of them is what the default search leaves. The rest of its gap is the lower bound's, or that
of plans which no search finds. Writes benchmarks/results/long-searches_<hardware>_<date>.md.
"""

import argparse
import sys
import time
from statistics import median

from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.planning import searched
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.workload_store import read_workload

from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, workload_request

WORKLOADS = (
    "criteo-kaggle",
    "mlperf-dlrm-dcnv2",
    "mlperf-dlrm-v1",
    "nvidia-synthetic-criteo",
    "nvidia-synthetic-tiny",
)
NUM_DEVICES = 8
BATCH_SIZE_PER_DEVICE = 8192
LONG = SearchTuning(most_rounds=10, num_candidates=20, num_best=6, least_round_gain=0.0)


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--work", type=int, default=250_000, help="of a long search, in device evaluations")
    options = parser.parse_args()
    bundle = bundled_bundle(DEVICE_TYPE)
    lines = [
        "# Plans next to long searches",
        "",
        f"Public workloads on {NUM_DEVICES} {DEVICE_TYPE}, {BATCH_SIZE_PER_DEVICE} samples per device, all types.",
        "Predicted milliseconds of the embedding part of a step. Best: the cheapest of the plan and of",
        f"{options.seeds} searches with {options.work:,} evaluations each.",
        "Seconds: processor time of the plan, and of all long searches.",
        "",
        "| workload | plan | best | plan above best | bound | best above bound | seconds | long |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shares = []
    for name in WORKLOADS:
        request = workload_request(read_workload(name), NUM_DEVICES, devices_per_node=NUM_DEVICES)
        request = request.model_copy(update={"batch_size_per_device": BATCH_SIZE_PER_DEVICE})
        began = time.process_time()
        plan = searched(request, bundle, None)
        planned = time.process_time()
        best_ms = plan.predicted.total_ms
        for seed in range(options.seeds):
            search = request.search.model_copy(update={"seed": seed, "work_budget": options.work})
            found = searched(request.model_copy(update={"search": search}), bundle, None, tuning=LONG)
            best_ms = min(best_ms, found.predicted.total_ms)
        shares.append((plan.predicted.total_ms / best_ms - 1, best_ms / plan.lower_bound_ms - 1))
        lines.append(
            f"| {name} | {plan.predicted.total_ms:.4f} | {best_ms:.4f} | {shares[-1][0]:.2%} "
            f"| {plan.lower_bound_ms:.4f} | {shares[-1][1]:.1%} | {planned - began:.1f} "
            f"| {time.process_time() - planned:.0f} |"
        )
        sys.stderr.write(lines[-1] + "\n")
    plans, bounds = zip(*shares, strict=True)
    lines += [
        "",
        f"Plans above the best: median {median(plans):.2%}, most {max(plans):.2%}.",
        f"The best above the bound: median {median(bounds):.1%}, most {max(bounds):.1%}.",
    ]
    write_result("long-searches", lines)


if __name__ == "__main__":
    main()

"""Predicted beside measured embedding time of whole plans, in real training on two processes of this machine.

    neuroshard profile job.yaml --tables tables.yaml --out PROFILE     # on the same machine
    python -m benchmarks.plan_times PROFILE

The neural plan and those of all baselines, random ones of several seeds, are trained in turn, round by round, in the
same two processes; each pinned to a core with one thread, gloo between them. Measured is the median over the rounds of
what the trainer's own step reports say; predicted is what the profile's cost models say.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch.distributed as dist
from neuroshard_api.hardware import Hardware
from neuroshard_api.plan import Plan
from neuroshard_api.request import Algorithm, PlanRequest, SearchSettings
from neuroshard_api.step_report import StepReport
from neuroshard_costs.bundle import load_bundle
from neuroshard_planner.planning import plan as search
from neuroshard_trainer.step_reporter import StepReporter

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import (
    BATCH_SIZE,
    TABLES,
    WORLD_SIZE,
    ShardedTraining,
    batches,
    start_process,
    torchrun,
)

RANDOM_SEEDS = range(5)
ROUNDS = 8
STEPS = 12  # of each plan and round
WARM_UP_STEPS = 4
PARTS = ("forward_compute_ms", "backward_compute_ms", "forward_communication_ms", "backward_communication_ms")
Times = dict[str, list[list[dict[str, float]]]]
"""By plan: for each round the parts of each rank."""


HEAD = """# Predicted and measured embedding time of whole plans

Machine: {machine}, two cores; load average at the end: {load:.1f}.
{num_tables} tables, {batch_size} samples per process, row-wise Adagrad, FBGEMM's CPU kernels, two processes over gloo,
each on a core of its own with one thread. Cost models: `{bundle}`, {source}, hold-out error of compute {error:.1%}.
Measured: the slowest process's sum of lookups, backward kernels and both all-to-alls (waiting included), median of
{rounds} rounds of the median of {steps} steps; the plans take turns."""

FOOT = """Rank correlation (Kendall's tau) of predicted and measured: {whole:.2f} in all, {alone:.2f} for compute.
Of the measurements' even and odd rounds with each other, which is about the most that a prediction could reach in this
noise: {noise:.2f}. The plan of the neural search is number {first} of {count} by prediction, {second} by measurement,
{third} by measured compute alone.

What this can show: whether plans that are predicted to compute less do so in real training with real kernels. What it
cannot: gloo on one machine copies through sockets, with the very cores that compute. An all-to-all costs what the
scheduler makes of it and says nothing of a GPU's network. No number here is one of a GPU."""


def main() -> None:
    """Plan, train and write the result; or, given a folder of plans, be one of the processes that train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path, help="what `neuroshard profile` wrote")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plans = make_plans(options.profile, folder)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *torchrun(Path(__file__), str(options.profile), "--train", scratch)]
        subprocess.run(command, check=True, env=environment)  # noqa: S603 - this script
        times: Times = json.loads((folder / "times.json").read_text())
    print(write_result("plan-times", report(plans, times), hardware=hardware_slug()))


def make_plans(profile: Path, folder: Path) -> dict[str, Plan]:
    """Write the plans to ``<name>.plan.json`` and return them by name."""
    hardware = Hardware.read(profile / "hardware.json")
    bundle = load_bundle(profile / "bundle")
    request = PlanRequest(
        tables=TABLES,
        topology=hardware.topology(num_nodes=1, devices_per_node=WORLD_SIZE),
        batch_size_per_device=BATCH_SIZE,
    )
    wanted = {str(algorithm): request.model_copy(update={"algorithm": algorithm}) for algorithm in Algorithm}
    del wanted[Algorithm.RANDOM]
    for seed in RANDOM_SEEDS:
        update = {"algorithm": Algorithm.RANDOM, "search": SearchSettings(seed=seed)}
        wanted[f"random {seed}"] = request.model_copy(update=update)
    plans = {name: search(each, bundle=bundle) for name, each in wanted.items()}
    for name, plan in plans.items():
        (folder / f"{name}.plan.json").write_text(plan.to_json())
    return plans


def train(folder: Path) -> None:
    """Train under the plans in turn and write the times of all rounds."""
    start_process()
    data = batches()
    trainings, reporters = {}, {}
    reports: list[StepReport] = []
    for file in sorted(folder.glob("*.plan.json")):
        name = file.name.removesuffix(".plan.json")
        trainings[name] = ShardedTraining(Plan.read(file))
        reporters[name] = StepReporter(
            trainings[name].model, file, write=reports.append, report_every=10**9, window=STEPS - WARM_UP_STEPS
        )
    times: Times = {name: [] for name in trainings}
    names = list(trainings)
    for turn in range(ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            for batch in reporters[name].steps([data[step % len(data)] for step in range(STEPS)]):
                trainings[name].step(batch)
            if dist.get_rank() == 0:
                ranks = reports.pop().ranks
                times[name].append([{part: getattr(rank, part) for part in (*PARTS, "step_ms")} for rank in ranks])
    if dist.get_rank() == 0:
        (folder / "times.json").write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def report(plans: dict[str, Plan], times: Times) -> list[str]:
    """Return the lines of the result."""
    measured = {name: [total_ms(ranks) for ranks in rounds] for name, rounds in times.items()}
    compute = {name: [total_ms(ranks, PARTS[:2]) for ranks in rounds] for name, rounds in times.items()}
    predicted = {name: plan.predicted.total_ms for name, plan in plans.items()}
    predicted_compute = {
        name: max(cost.forward_compute_ms + cost.backward_compute_ms for cost in plan.predicted.devices)
        for name, plan in plans.items()
    }
    order = sorted(plans, key=lambda name: median(measured[name]))
    bundle = next(iter(plans.values())).bundle
    head = HEAD.format(
        num_tables=len(TABLES.tables),
        batch_size=BATCH_SIZE,
        bundle=bundle.name,
        source=bundle.source,
        error=bundle.compute_mape,
        rounds=ROUNDS,
        steps=STEPS - WARM_UP_STEPS,
        machine=cpu_model(),
        load=os.getloadavg()[0],
    )
    lines = [
        *head.splitlines(),
        "",
        "| plan | predicted ms | measured ms (quartiles) | error | compute predicted | measured (quartiles) | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in order:
        cells = [
            name,
            f"{predicted[name]:.2f}",
            spread(measured[name]),
            f"{predicted[name] / median(measured[name]) - 1:+.0%}",
            f"{predicted_compute[name]:.2f}",
            spread(compute[name]),
            f"{predicted_compute[name] / median(compute[name]) - 1:+.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    whole = rank_correlation([predicted[name] for name in order], [median(measured[name]) for name in order])
    alone = rank_correlation([predicted_compute[name] for name in order], [median(compute[name]) for name in order])
    noise = rank_correlation(
        [median(measured[name][::2]) for name in order], [median(measured[name][1::2]) for name in order]
    )
    foot = FOOT.format(
        whole=whole,
        alone=alone,
        noise=noise,
        count=len(plans),
        first=place(predicted),
        second=place({name: median(values) for name, values in measured.items()}),
        third=place({name: median(values) for name, values in compute.items()}),
    )
    return [*lines, "", *foot.splitlines()]


def total_ms(ranks: Sequence[dict[str, float]], parts: Sequence[str] = PARTS) -> float:
    """Return the slowest rank's sum of some parts."""
    return max(sum(times[part] for part in parts) for times in ranks)


def place(times: dict[str, float]) -> int:
    """Return how many plans are as fast as the neural search's or faster, itself included."""
    return sum(value <= times[Algorithm.NEUROSHARD] for value in times.values())


def spread(values: Sequence[float]) -> str:
    """Return the median with the quartiles."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return f"{median(ordered):.2f} ({ordered[quarter]:.2f} to {ordered[-1 - quarter]:.2f})"


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Kendall's tau-a."""
    pairs = [(one, other) for one in range(len(left)) for other in range(one)]
    signs = [(left[one] - left[other]) * (right[one] - right[other]) for one, other in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(pairs)


if __name__ == "__main__":
    main()

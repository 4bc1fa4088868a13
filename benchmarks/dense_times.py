"""Predicted and measured time of the dense part's passes, in every strategy, in real training on processes of this CPU.

    python -m benchmarks.dense_times PROFILE [--procs 2]

PROFILE is what `neuroshard profile` wrote on this machine. Three models train with their units replicated, ZeRO-2, and
ZeRO-3, each process on one thread and gloo between them. Compute is processor time of the thread that computes, of the
slower rank, which leaves out other processes. Collectives are time by the clock, which does not.
Predicted are matrix products, copies, and all else by the profile's cost models, what the host does for the operations
(without the optimizer's) and for sharded units, and the exposed collectives.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.dense_layout import CheckpointingChoice, DenseStrategy
from neuroshard_api.documents.document import read_data
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan, any_plan
from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_costs.bundle import CostBundle, load_bundle
from neuroshard_costs.host import HostWork
from neuroshard_dense.whole_step import collectives_of_shards
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.measure.step_reporter import StepReporter

from benchmarks.allocated_memory import batches_of, planned_training
from benchmarks.dense_memory_error import TABLES, dense_plan
from benchmarks.plan_times import ProcessorClock
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import WORLD_SIZE, torchrun
from benchmarks.trained_memory import counted_request, training_job

MODELS: Mapping[str, Mapping[str, Any]] = {
    "DLRM": {"batchSizePerDevice": 128, "overArchLayerSizes": [1024, 1024, 512]},
    "DCNv2": {
        "architecture": "DCNv2",
        "batchSizePerDevice": 128,
        "crossNetwork": {"numLayers": 3, "lowRankDim": 512},
        "overArchLayerSizes": [512, 256],
    },
    "Wukong": {
        "architecture": "Wukong",
        "batchSizePerDevice": 128,
        "wukong": {"numLayers": 3, "numInteractions": 8, "lowRankDim": 16, "layerSizes": [512]},
        "overArchLayerSizes": [512, 256],
    },
}
STEPS = 12
WARM_UP_STEPS = 3
CLOCKS = ("processor", "wall")


def main() -> None:
    """Plan, train, and write the result; or be one of the processes that train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?")
    parser.add_argument("--procs", type=int, default=WORLD_SIZE, help="processes that train")
    parser.add_argument("--train", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train([Path(each) for each in options.train])
        return
    load = os.getloadavg()[0]
    hardware, bundle = Hardware.read(options.profile / "hardware.json"), load_bundle(options.profile / "bundle")
    topology = hardware.topology(num_nodes=1, devices_per_node=options.procs)
    names, plans = [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder, files = Path(scratch), []
        for model, sizes in MODELS.items():
            job = training_job(TABLES, sizes, where=model)
            counted = counted_request(job).model_copy(update={"algorithm": Algorithm.SIZE_GREEDY, "topology": topology})
            for strategy in DenseStrategy:
                names.append((model, strategy))
                plans.append(dense_plan(counted, strategy, CheckpointingChoice.NEVER, bundle=bundle))
                files += [folder / f"{len(plans)}.job.json", folder / f"{len(plans)}.plan.json"]
                files[-2].write_text(job.to_json(), encoding="utf-8")
                files[-1].write_text(plans[-1].to_json(), encoding="utf-8")
        arguments = [*map(str, files), scratch]
        command = [sys.executable, *torchrun(Path(__file__), "--train", *arguments, count=options.procs)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - this script
        measured = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    lines = report(names, plans, measured, costs=bundle, procs=options.procs, load=load)
    name = "dense-times" if options.procs == WORLD_SIZE else f"dense-times-{options.procs}-processes"
    print(write_result(name, lines, hardware=hardware_slug()))


def train(arguments: Sequence[Path]) -> None:
    """Train each job under its plan, and write each step's times by plan and clock from rank 0."""
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    *files, folder = arguments
    times = []
    for job_file, plan_file in zip(files[::2], files[1::2], strict=True):
        job, plan = read_job(job_file), any_plan(read_data(plan_file), where=str(plan_file))
        model, step = planned_training(job, plan)
        found: dict[str, list[StepReport]] = {clock: [] for clock in CLOCKS}
        wall = StepReporter(model, plan_file, write=found["wall"].append, report_every=1, window=1)
        processor = StepReporter(
            model, plan_file, write=found["processor"].append, report_every=1, window=1, clock=ProcessorClock()
        )
        for batch in wall.steps(processor.steps(batches_of(job, plan, STEPS))):
            step(batch)
            processor.end_step()
            wall.end_step()
        times.append({name: [_passes(each.ranks) for each in reports] for name, reports in found.items()})
    if dist.get_rank() == 0:
        (folder / "times.json").write_text(json.dumps(times), encoding="utf-8")
    dist.barrier()


def _passes(ranks: Sequence[RankTimes]) -> tuple[float, float, float]:
    """Return forward, backward, and collectives of a step: of the rank that computes longest, and that waits least."""
    slowest = max(ranks, key=lambda rank: (rank.dense_forward_ms or 0.0) + (rank.dense_backward_ms or 0.0))
    waits = min(rank.dense_collectives_ms or 0.0 for rank in ranks)
    return slowest.dense_forward_ms or 0.0, slowest.dense_backward_ms or 0.0, waits


def host_ms(plan: Plan, costs: CostBundle) -> float:
    """Return the time of the thread for the operations and the collectives of both passes, in milliseconds."""
    profile = plan.request.dense
    assert profile is not None
    assert profile.passes is not None
    passes, operations = profile.passes, profile.passes.forward.operations + profile.passes.backward.operations
    work = HostWork(operations=operations, tensors=passes.num_tensors, **collectives_of_shards(plan))
    return costs.host_times(work).dense_ms or 0.0


def report(
    names: Sequence[tuple[str, DenseStrategy]],
    plans: Sequence[Plan],
    measured: Sequence[Mapping[str, Sequence[Sequence[float]]]],
    *,
    costs: CostBundle,
    procs: int,
    load: float,
) -> list[str]:
    """Return the lines of the result."""
    rows, errors = [], []
    for (model, strategy), plan, times in zip(names, plans, measured, strict=True):
        cost, profile = plan.dense_cost, plan.request.dense
        assert cost is not None
        assert profile is not None
        forward, backward = ([step[place] for step in times["processor"][WARM_UP_STEPS:]] for place in (0, 1))
        both = [a + b for a, b in zip(forward, backward, strict=True)]
        passes_ms = cost.compute_ms + (cost.other_ms or 0.0) + (cost.copies_ms or 0.0) + host_ms(plan, costs)
        low, middle, high = quantiles(both)
        waits = quantiles([step[2] for step in times["wall"][WARM_UP_STEPS:]])
        errors.append(passes_ms / middle - 1)
        rows.append(
            f"| {model} | {strategy} | {profile.num_parameters / 1e6:.2f} | {cost.compute_ms:.1f} | {passes_ms:.1f} | "
            f"{middle:.1f} ({low:.1f} to {high:.1f}) | {median(forward):.1f} | {median(backward):.1f} | "
            f"{100 * errors[-1]:+.0f} % | {cost.exposed_ms:.1f} | {waits[0]:.1f} to {waits[2]:.1f} |"
        )
    machine = (
        f"Machine: {cpu_model()}, two cores, shared with other work; load average at the start {load:.1f}, at the end "
        f"{os.getloadavg()[0]:.1f}. {procs} processes."
    )
    head = (
        "| model | strategy | million parameters | products | compute predicted | measured (quartiles) | of it forward "
        "| backward | error | exposed collectives predicted | waits measured (quartiles) |"
    )
    error = f"{100 * min(errors):+.0f} to {100 * max(errors):+.0f} %, median {100 * median(errors):+.0f} %"
    return [
        "# Predicted and measured time of the dense part",
        "",
        machine,
        "",
        *str(__doc__).splitlines()[4:],
        "",
        f"{STEPS - WARM_UP_STEPS} steps of each training count: median, and quartiles; 128 samples per process. ms.",
        "",
        head,
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Error of compute: {error}.",
    ]


if __name__ == "__main__":
    main()

"""What the step reporter costs: the same training with and without it, block by block in turn, on two processes.

python -m benchmarks.reporter_overhead
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch.distributed as dist
from neuroshard_api.plan import Plan
from neuroshard_planner.costs.bundle_store import bundled_bundle
from neuroshard_planner.search import plan as search
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.step_reporter import StepReporter

from benchmarks.plan_times import spread
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

BLOCKS = {BATCH_SIZE: 12, 16: 60}
"""Pairs of blocks by samples per process: usual steps, and short ones, in which the reporter's time stands out."""
STEPS = 20  # of a block
REPORT_EVERY = 20
US_PER_MS = 1000.0


HEAD = """# Overhead of the step reporter

Machine: {machine}, two cores; load average at the end: {load:.1f}. Processor time is what that
disturbs least.
{num_tables} tables, two processes over gloo, each on a core of its own with one thread; rank 0's numbers. Pairs of
blocks of {steps} steps, one without and one with the reporter, which collects and writes a report of all ranks every
{report_every} steps (the default is 100). Medians over the blocks."""


def main() -> None:
    """Measure and write the result; or, given a folder, be one of the processes that train."""
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return
    from neuroshard_api.request import PlanRequest  # noqa: PLC0415 - of this process alone
    from neuroshard_api.topology import Link, Topology  # noqa: PLC0415

    bundle = bundled_bundle("h100-80gb")
    link = Link(bandwidth_bytes_per_second=1e11, latency_seconds=1e-5)
    topology = Topology(devices_per_node=WORLD_SIZE, device=bundle.manifest.device, intra_node=link, inter_node=link)
    plan = search(PlanRequest(tables=TABLES, topology=topology, batch_size_per_device=BATCH_SIZE), bundle=bundle)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "plan.json").write_text(plan.to_json())
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *torchrun(Path(__file__), scratch)], check=True, env=environment)  # noqa: S603
        blocks = json.loads((Path(scratch) / "blocks.json").read_text())
    print(write_result("reporter-overhead", report(blocks), hardware=hardware_slug()))


def train(folder: Path) -> None:
    """Time blocks of steps with and without the reporter in turn."""
    start_process()
    plan = Plan.read(folder / "plan.json")
    plain, reported = ShardedTraining(plan), ShardedTraining(plan)
    reporter = StepReporter(
        reported.model, folder / "plan.json", write=folder / "step-report.json", report_every=REPORT_EVERY
    )

    def without(steps: list[Batch]) -> None:
        for batch in steps:
            plain.step(batch)

    def with_reporter(steps: list[Batch]) -> None:
        for batch in reporter.steps(steps):
            reported.step(batch)

    blocks = {}
    for batch_size, count in BLOCKS.items():
        data = batches(batch_size)
        steps = [data[step % len(data)] for step in range(STEPS)]
        blocks[batch_size] = [(timed(without, steps), timed(with_reporter, steps)) for _ in range(count + 1)][1:]
    if dist.get_rank() == 0:
        (folder / "blocks.json").write_text(json.dumps(blocks))
    dist.barrier()
    dist.destroy_process_group()


def timed(block: Callable[[list[Batch]], None], steps: list[Batch]) -> tuple[float, float]:
    """Return milliseconds of a step: by the clock, and of this process's processor time, all its threads."""
    dist.barrier()
    clock, processor = time.perf_counter(), time.process_time()
    block(steps)
    return 1000 * (time.perf_counter() - clock) / STEPS, 1000 * (time.process_time() - processor) / STEPS


def report(blocks: dict[str, list[list[list[float]]]]) -> list[str]:
    """Return the lines of the result."""
    head = HEAD.format(
        num_tables=len(TABLES.tables),
        steps=STEPS,
        report_every=REPORT_EVERY,
        machine=cpu_model(),
        load=os.getloadavg()[0],
    )
    lines = [
        *head.splitlines(),
        "",
        "| samples | a step, in ms (quartiles) | without | with | differences of the pairs, in microseconds |",
        "|---|---|---|---|---|",
    ]
    medians = {}
    for batch_size, pairs in blocks.items():
        for index, name in enumerate(("by the clock", "processor time")):
            without = [pair[0][index] for pair in pairs]
            reported = [pair[1][index] for pair in pairs]
            differences = [US_PER_MS * (after - before) for before, after in zip(without, reported, strict=True)]
            medians[batch_size, index] = (median(without), median(differences) / US_PER_MS)
            cells = [f"{batch_size}", name, spread(without), spread(reported), spread(differences)]
            lines.append(f"| {' | '.join(cells)} |")
    usual, short = blocks
    share = medians[short, 1][1] / medians[usual, 1][0]
    return [
        *lines,
        "",
        f"The reporter's time does not depend on the samples. That of a short step is {share:.2%} of a usual step's",
        "processor time; the aim is less than 1 %.",
    ]


if __name__ == "__main__":
    main()

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
from neuroshard_trainer.step_reporter import StepReporter

from benchmarks.plan_times import spread
from benchmarks.results_file import write_result
from benchmarks.sharded_training import (
    BATCH_SIZE,
    TABLES,
    WORLD_SIZE,
    ShardedTraining,
    batches,
    start_process,
    torchrun,
)

BLOCKS = 16
STEPS = 20  # of a block
REPORT_EVERY = 20


HEAD = """# Overhead of the step reporter

{num_tables} tables, {batch_size} samples per process, two processes over gloo, each on a core of its own with one
thread; rank 0's numbers. {blocks} pairs of blocks of {steps} steps, one without and one with the reporter, which
collects and writes a report of all ranks every {report_every} steps (the default is 100). Medians over the blocks.
Load average at the end: {load:.1f}; processor time is what other work on the machine disturbs least."""


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
    print(write_result("reporter-overhead", report(blocks)))


def train(folder: Path) -> None:
    """Time blocks of steps with and without the reporter in turn."""
    start_process()
    data = batches()
    plan = Plan.read(folder / "plan.json")
    plain, reported = ShardedTraining(plan), ShardedTraining(plan)
    reporter = StepReporter(
        reported.model, folder / "plan.json", write=folder / "step-report.json", report_every=REPORT_EVERY
    )
    steps = [data[step % len(data)] for step in range(STEPS)]

    def without() -> None:
        for batch in steps:
            plain.step(batch)

    def with_reporter() -> None:
        for batch in reporter.steps(steps):
            reported.step(batch)

    blocks = [(timed(without), timed(with_reporter)) for _ in range(BLOCKS + 1)][1:]
    if dist.get_rank() == 0:
        (folder / "blocks.json").write_text(json.dumps(blocks))
    dist.barrier()
    dist.destroy_process_group()


def timed(block: Callable[[], None]) -> tuple[float, float]:
    """Return milliseconds of a step: by the clock, and of this process's processor time, all its threads."""
    dist.barrier()
    clock, processor = time.perf_counter(), time.process_time()
    block()
    return 1000 * (time.perf_counter() - clock) / STEPS, 1000 * (time.process_time() - processor) / STEPS


def report(blocks: list[list[list[float]]]) -> list[str]:
    """Return the lines of the result."""
    head = HEAD.format(
        num_tables=len(TABLES.tables),
        batch_size=BATCH_SIZE,
        blocks=BLOCKS,
        steps=STEPS,
        report_every=REPORT_EVERY,
        load=os.getloadavg()[0],
    )
    lines = [
        *head.splitlines(),
        "",
        "| a step, in ms (quartiles) | without | with | the pairs' differences (quartiles) |",
        "|---|---|---|---|",
    ]
    for index, name in enumerate(("by the clock", "processor time")):
        without = [pair[0][index] for pair in blocks]
        reported = [pair[1][index] for pair in blocks]
        shares = sorted(after / before - 1 for before, after in zip(without, reported, strict=True))
        quarter = len(shares) // 4
        difference = f"{median(shares):+.2%} ({shares[quarter]:+.2%} to {shares[-1 - quarter]:+.2%})"
        lines.append(f"| {name} | {spread(without)} | {spread(reported)} | {difference} |")
    return [*lines, "", "The aim is less than 1 % of a step."]


if __name__ == "__main__":
    main()

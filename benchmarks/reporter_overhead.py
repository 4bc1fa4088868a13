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
WITHOUT, WITH = "neither has a reporter", "the second has one"
Pairs = dict[int, list[tuple[tuple[float, float], tuple[float, float]]]]
"""By samples per process, for each pair of blocks: milliseconds of a step by the clock and of the processor."""


HEAD = """# Overhead of the step reporter

Machine: {machine}, two cores; load average at the end: {load:.1f}. Processor time is what that
disturbs least.
{num_tables} tables, two processes over gloo, each on a core of its own with one thread; rank 0's numbers. Two models
take turns, in pairs of blocks of {steps} steps: first neither has a reporter, which shows what else sets them apart,
such as where their tables lie in memory; then the second has one that collects and writes a report of all ranks every
{report_every} steps (the default is 100). Medians over the blocks and quartiles; what the reporter adds is the
difference of the differences."""


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
    """Time blocks of steps of two models in turn, before and after one of them gets the reporter."""
    start_process()
    plan = Plan.read(folder / "plan.json")
    first, second = ShardedTraining(plan), ShardedTraining(plan)

    def plainly(training: ShardedTraining) -> Callable[[list[Batch]], None]:
        def block(steps: list[Batch]) -> None:
            for batch in steps:
                training.step(batch)

        return block

    steps = {size: [data[step % len(data)] for step in range(STEPS)] for size in BLOCKS if (data := batches(size))}
    blocks = {WITHOUT: _in_turn(plainly(first), plainly(second), steps)}
    reporter = StepReporter(
        second.model, folder / "plan.json", write=folder / "step-report.json", report_every=REPORT_EVERY
    )

    def with_reporter(steps: list[Batch]) -> None:
        for batch in reporter.steps(steps):
            second.step(batch)

    blocks[WITH] = _in_turn(plainly(first), with_reporter, steps)
    if dist.get_rank() == 0:
        (folder / "blocks.json").write_text(json.dumps(blocks))
    dist.barrier()
    dist.destroy_process_group()


def _in_turn(
    first: Callable[[list[Batch]], None], second: Callable[[list[Batch]], None], steps: dict[int, list[Batch]]
) -> Pairs:
    """Return the times of pairs of blocks by samples per process; the first pair warms up."""
    return {
        size: [(timed(first, steps[size]), timed(second, steps[size])) for _ in range(count + 1)][1:]
        for size, count in BLOCKS.items()
    }


def timed(block: Callable[[list[Batch]], None], steps: list[Batch]) -> tuple[float, float]:
    """Return milliseconds of a step: by the clock, and of this process's processor time, all its threads."""
    dist.barrier()
    clock, processor = time.perf_counter(), time.process_time()
    block(steps)
    return 1000 * (time.perf_counter() - clock) / STEPS, 1000 * (time.process_time() - processor) / STEPS


def report(blocks: dict[str, dict[str, list[list[list[float]]]]]) -> list[str]:
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
        "| samples | a step, in ms | reporter | first model | second model | differences of the pairs, in us |",
        "|---|---|---|---|---|---|",
    ]
    added_us = {}
    for size in map(str, BLOCKS):
        for index, measure in enumerate(("by the clock", "processor time")):
            differences = {}
            for reporter, pairs in blocks.items():
                first, second = ([pair[model][index] for pair in pairs[size]] for model in (0, 1))
                differences[reporter] = [US_PER_MS * (b - a) for a, b in zip(first, second, strict=True)]
                cells = [size, measure, reporter, spread(first), spread(second), spread(differences[reporter])]
                lines.append(f"| {' | '.join(cells)} |")
            added_us[size, index] = median(differences[WITH]) - median(differences[WITHOUT])
    usual, short = map(str, BLOCKS)
    usual_us = US_PER_MS * median(pair[0][1] for pair in blocks[WITHOUT][usual])
    return [
        *lines,
        "",
        f"What the reporter adds to a step of {usual} samples: {added_us[usual, 0]:.0f} microseconds by the clock,",
        f"{added_us[usual, 1]:.0f} of processor time, {added_us[usual, 1] / usual_us:.2%} of the step's. It does not",
        f"depend on the samples, and shows best beside a short step: {added_us[short, 1]:.0f} microseconds of it,",
        f"which are {added_us[short, 1] / usual_us:.2%} of a usual step's. The aim is less than 1 %.",
    ]


if __name__ == "__main__":
    main()

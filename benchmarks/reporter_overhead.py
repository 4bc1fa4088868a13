"""What the step reporter costs: the same training with and without it, step by step in turn, on two processes.

python -m benchmarks.reporter_overhead
"""

import json
import os
import sys
from pathlib import Path
from statistics import median

import numpy as np
import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.measure.step_reporter import REPORT_EVERY_STEPS, StepReporter

from benchmarks.interleaved_loops import BLOCKS_FILE, PLAN_FILE, Step, Times, measured_blocks, timed
from benchmarks.plan_times import spread
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import (
    BATCH_SIZE,
    MIXED,
    ShardedTraining,
    batches,
    start_process,
)

BLOCKS = {BATCH_SIZE: 12, 16: 30}
"""Blocks of steps by samples per process: usual steps, and short ones, in which the reporter's time stands out."""
STEPS = REPORT_EVERY_STEPS  # of a block, which thus holds one report
US_PER_MS = 1000.0
WITHOUT, WITH = "neither has a reporter", "the second has one"
Blocks = dict[int, list[tuple[Times, Times]]]
"""Mean times of the steps of both models by samples per process, for each block."""


HEAD = """# Overhead of the step reporter

Machine: {machine}, two cores; load average at the end: {load:.1f}. Processor time is what that
disturbs least.
{num_tables} tables, two processes over gloo, each on a core of its own with one thread; rank 0's numbers. Two models
take turns step by step: first neither has a reporter, which shows what else sets them apart, such as where their tables
lie in memory; then the second has one that collects and writes a report of all ranks every {steps} steps, as by
default. Medians, and quartiles, of means over blocks of {steps} steps of each; what the reporter adds is the difference
of the differences."""


def main() -> None:
    """Measure and write the result; or, given a folder, be one of the processes that train."""
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return
    print(write_result("reporter-overhead", report(measured_blocks(Path(__file__), MIXED)), hardware=hardware_slug()))


def train(folder: Path) -> None:
    """Time blocks of steps of two models in turn, before and after one of them gets the reporter."""
    start_process()
    plan = Plan.read(folder / PLAN_FILE)
    first, second = ShardedTraining(plan), ShardedTraining(plan)
    data = {size: batches(size) for size in BLOCKS}
    blocks = {WITHOUT: _in_turn(first.step, second.step, data)}
    reporter = StepReporter(second.model, folder / PLAN_FILE, write=folder / "step-report.json")
    given: list[Batch] = []
    reported = reporter.steps(iter(given.pop, None))

    def with_reporter(batch: Batch) -> None:
        given.append(batch)
        second.step(next(reported))
        reporter.end_step()

    blocks[WITH] = _in_turn(first.step, with_reporter, data)
    if dist.get_rank() == 0:
        (folder / BLOCKS_FILE).write_text(json.dumps(blocks))
    dist.barrier()
    dist.destroy_process_group()


def _in_turn(first: Step, second: Step, data: dict[int, list[Batch]]) -> Blocks:
    """Return the means of blocks of steps by samples per process; the first block warms up."""
    return {size: [_block(first, second, data[size]) for _ in range(count + 1)][1:] for size, count in BLOCKS.items()}


def _block(first: Step, second: Step, data: list[Batch]) -> tuple[Times, Times]:
    """Return the mean times of both models' steps, which take turns one by one: what drifts meets both."""
    times = np.array([[timed(step, data[index % len(data)]) for step in (first, second)] for index in range(STEPS)])
    mean: tuple[Times, Times] = tuple(times.mean(axis=0).tolist())
    return mean


def report(blocks: dict[str, dict[str, list[list[list[float]]]]]) -> list[str]:
    """Return the lines of the result."""
    head = HEAD.format(
        num_tables=len(MIXED.tables),
        steps=STEPS,
        machine=cpu_model(),
        load=os.getloadavg()[0],
    )
    lines = [
        *head.splitlines(),
        "",
        "| samples | a step, in ms | reporter | first model | second model | difference, in us |",
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
            added_us[size, index] = _added(differences[WITH], differences[WITHOUT])
    usual, short = map(str, BLOCKS)
    clock_us, processor_us = (US_PER_MS * median(pair[0][index] for pair in blocks[WITHOUT][usual]) for index in (0, 1))
    return [
        *lines,
        "",
        "What the reporter adds to a step, in microseconds, means with standard errors:",
        "",
        f"- {usual} samples, by the clock: {_share(added_us[usual, 0], clock_us)} of the step",
        f"- {usual} samples, processor time: {_share(added_us[usual, 1], processor_us)} of the step's",
        f"- {short} samples, processor time: {_share(added_us[short, 1], processor_us)} of what a usual step takes",
        "",
        "The aim is below 1 %.",
    ]


def _added(after: list[float], before: list[float]) -> tuple[float, float]:
    """Return the difference of two means, and its standard error."""
    error = np.sqrt(sum(np.var(values, ddof=1) / len(values) for values in (after, before)))
    return float(np.mean(after) - np.mean(before)), float(error)


def _share(added_us: tuple[float, float], step_us: float) -> str:
    mean, error = added_us
    return f"{mean:.0f} ± {error:.0f}, which are {mean / step_us:.2%} ± {error / step_us:.2%}"


if __name__ == "__main__":
    main()

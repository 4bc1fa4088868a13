"""What the step reporter costs: the same training with and without it, step by step in turn, on two processes.

Once with the host's own clock, and once with marks that cost what a CUDA event's record cost the host of an H200.

python -m benchmarks.reporter_overhead
"""

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import TypedDict

import numpy as np
import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.measure.step_reporter import REPORT_EVERY_STEPS, StepReporter
from neuroshard_trainer.ranks.clocks import HostClock, Mark

from benchmarks.interleaved_loops import BLOCKS_FILE, PLAN_FILE, Step, Times, measured_blocks, timed
from benchmarks.plan_times import spread
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import (
    MIXED,
    ShardedTraining,
    batches,
    start_process,
)

BLOCKS = {1024: 6, 16: 20}
"""Blocks of steps by samples per process: usual steps, and short ones, in which the reporter's time stands out."""
STEPS = REPORT_EVERY_STEPS  # of a block, which thus holds one report
US_PER_MS = 1000.0
MARK_US = 23.0
"""What a launch of a small kernel cost the host of an H200; the record of an event costs about the same."""
HOST_BOUND_STEP_MS = 5.65
"""A step of TorchRec's plain loop there, at 8,192 samples and TF32, which the host bound (benchmarks/gpu/speed.py)."""
WITHOUT, WITH, COSTLY = "neither has a reporter", "the second has one", f"its marks cost {MARK_US:.0f} us each"
Blocks = dict[int, list[tuple[Times, Times]]]
"""Mean times of the steps of both models by samples per process, for each block."""


class Found(TypedDict):
    """What the processes measured."""

    blocks: dict[str, dict[str, list[list[list[float]]]]]
    marks: float
    """Of a step, on average."""


HEAD = """# Overhead of the step reporter

Machine: {machine}, two cores; load average at the end: {load:.1f}. Processor time is what that
disturbs least.
{num_tables} tables, two processes over gloo, each on a core of its own with one thread; rank 0's numbers. Two models
take turns step by step: first neither has a reporter, which shows what else sets them apart, such as where their tables
lie in memory; then the second has one that collects and writes a report of all ranks every {steps} steps, as by
default; then each of its marks keeps the processor busy as the record of a CUDA event did on an H200. Medians,
and quartiles, of means over blocks of {steps} steps of each; the reporter adds the difference of the differences."""


class CountingClock(HostClock):
    """Counts marks, each of which keeps the processor busy for a while."""

    def __init__(self) -> None:
        self.num_marks = 0
        self.mark_us = 0.0

    def mark(self) -> Mark:
        """Return the host's time, once the mark's own time is over."""
        self.num_marks += 1
        until = time.perf_counter_ns() + int(1000 * self.mark_us) if self.mark_us else 0
        while time.perf_counter_ns() < until:
            pass
        return super().mark()


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
    clock = CountingClock()
    reporter = StepReporter(second.model, folder / PLAN_FILE, write=folder / "step-report.json", clock=clock)
    given: list[Batch] = []
    reported = reporter.steps(iter(given.pop, None))

    def with_reporter(batch: Batch) -> None:
        given.append(batch)
        second.step(next(reported))
        reporter.end_step()

    blocks[WITH] = _in_turn(first.step, with_reporter, data)
    clock.mark_us, clock.num_marks = MARK_US, 0
    blocks[COSTLY] = _in_turn(first.step, with_reporter, data)
    marks = clock.num_marks / sum(STEPS * (count + 1) for count in BLOCKS.values())
    if dist.get_rank() == 0:
        (folder / BLOCKS_FILE).write_text(json.dumps({"blocks": blocks, "marks": marks}))
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


def report(found: Found) -> list[str]:
    """Return the lines of the result."""
    blocks, marks = found["blocks"], found["marks"]
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
            for each in (WITH, COSTLY):
                added_us[each, size, index] = _added(differences[each], differences[WITHOUT])
    usual, short = map(str, BLOCKS)
    clock_us, processor_us = (US_PER_MS * median(pair[0][index] for pair in blocks[WITHOUT][usual]) for index in (0, 1))
    costly = _share(added_us[COSTLY, short, 1], US_PER_MS * HOST_BOUND_STEP_MS)
    costly_us = marks * MARK_US + added_us[WITH, short, 1][0]
    return [
        *lines,
        "",
        "What the reporter adds to a step, in microseconds, means with standard errors:",
        "",
        f"- {usual} samples, by the clock: {_share(added_us[WITH, usual, 0], clock_us)} of the step",
        f"- {usual} samples, processor time: {_share(added_us[WITH, usual, 1], processor_us)} of the step's",
        f"- {short} samples, processor time: {_share(added_us[WITH, short, 1], processor_us)} of what a usual step has",
        f"- {short} samples, processor time, costly marks: {costly} of a step of {HOST_BOUND_STEP_MS} ms",
        "",
        f"A step has {marks:.2f} marks on average. At {MARK_US:.0f} us each, and with the third line's time, they are",
        f"{costly_us:.0f} us: {costly_us / US_PER_MS / HOST_BOUND_STEP_MS:.1%} of a step of {HOST_BOUND_STEP_MS} ms.",
        "",
        "The aims are below 1 % of a usual step, and at most 2 % of the step of 5.65 ms, which the host bound.",
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

"""One of two ranks that train while one thing after the other becomes slow, or their inputs change."""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.drift_report import DriftReport, SlowdownCause
from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE
from neuroshard_trainer.drift.work_budget import WorkBudget
from neuroshard_trainer.measure.processor_wait import ProcessorWait
from neuroshard_trainer.measure.step_reporter import StepReporter
from neuroshard_trainer.ranks.clocks import NS_PER_MS, Clock, HostClock, Mark
from neuroshard_trainer.sharding.live_sharding import sharded_collections
from support import builders
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import plan_of, write_plan
from support.trainer.trainer_models import sharded_model
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

TABLES = tuple(
    builders.table(name, num_embeddings=20_000, embedding_dim=64, pooling_factor=8.0) for name in ("user", "item")
)
SAMPLES, POOLING, DRIFTED_POOLING = 32, 8, 1920
LEARN_STEPS, FAULT_STEPS, REST_STEPS = 300, 300, 200
EXPECTED: dict[str, list[list[Any]]] = {
    "device": [[SlowdownCause.DEVICE_SLOW, [1], []]],
    "exchange": [[SlowdownCause.COMMUNICATION_SLOW, [], []]],
    "inputs": [[SlowdownCause.INPUTS_DRIFTED, [1], ["item"]]],
    "data": [[SlowdownCause.DATA_LATE, [0, 1], []]],
    "dense": [[SlowdownCause.DENSE_SLOW, [], []]],
    "everything": [[SlowdownCause.EVERYTHING_SLOW, [], []]],
}
"""Causes, ranks, and tables by fault."""
IN_TURN = tuple(fault for fault in EXPECTED if fault != "everything")
"""Faults of a training whose order no seed gives."""
NOTHING, QUIET = "nothing", "quiet"
"""Stand for the fault of the rest after each one, and for that of the steps before each round of faults."""
REPORT_STEPS = 100
"""Steps between reports."""
EXTRA_MS = 4.0
"""About as much as a step takes."""


@dataclass(frozen=True, slots=True)
class ThreadClock(HostClock):
    """Processor time of the training thread: waits for other programs, and for other ranks, are not part of it."""

    def mark(self) -> Mark:
        """Return the thread's time."""
        return time.thread_time_ns()

    def read_ms(self, marks: Sequence[Any]) -> list[float]:
        """Return the differences."""
        return [(mark - marks[0]) / NS_PER_MS for mark in marks]


def work(ms: float) -> None:
    """Compute for so long."""
    until = time.thread_time_ns() + ms * NS_PER_MS
    while time.thread_time_ns() < until:
        pass


class NoWaits(ProcessorWait):
    """Knows no waiting for processors, as it is in no processor time."""

    def share_since_last(self) -> float | None:
        """Return that it is not known."""
        return None


class Faults:
    """What is slow now."""

    def __init__(self) -> None:
        self.active = NOTHING

    def plant(self, model: nn.Module) -> None:
        """Hook the faults into the parts of a model whose times a reporter already marks."""
        (collection,) = sharded_collections(model)
        is_slow_rank = dist.get_rank() == 1
        in_lookups = ("device", "everything") if is_slow_rank else ("everything",)

        def slow(*faults: str) -> Callable[..., None]:
            return lambda *_: work(EXTRA_MS) if self.active in faults else None

        def slow_backward(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(slow(*in_lookups))

        for lookup in collection._lookups:
            lookup.register_forward_pre_hook(slow(*in_lookups))
            for kernel in lookup.modules():
                if hasattr(kernel, "placeholder_autograd_tensor"):
                    kernel.register_forward_hook(slow_backward)
        for output_dist in collection._output_dists:
            output_dist.register_forward_pre_hook(slow("exchange", "everything"))
        dense = next(module for name, module in model.named_modules() if name.endswith("over_arch"))
        dense.register_forward_pre_hook(slow("dense", *in_lookups))


def lookups(rng: np.random.Generator, item_pooling: int) -> KeyedJaggedTensor:
    """Return a batch."""
    sizes = {"user": POOLING, "item": item_pooling}
    count = SAMPLES * sum(sizes.values())
    return KeyedJaggedTensor(
        keys=list(sizes),
        values=torch.from_numpy(rng.integers(0, 20_000, count)),
        lengths=torch.tensor([size for size in sizes.values() for _ in range(SAMPLES)], dtype=torch.int32),
    )


def batch_under(fault: str, rng: np.random.Generator) -> KeyedJaggedTensor:
    """Return a batch as a fault of reading or of inputs makes it."""
    if fault == "data":
        work(EXTRA_MS)
    return lookups(rng, DRIFTED_POOLING if fault == "inputs" else POOLING)


def watched(model: nn.Module, plan_file: Path, *, clock: Clock | None) -> StepReporter:
    """Return a reporter whose watch writes at every report, whatever the load, next to the plan.

    A clock is one of processor time.
    """
    folder = plan_file.parent
    reporter = StepReporter(model, plan_file, write=folder / "step-report.json", clock=clock, drift=folder)
    if clock is not None:
        reporter._processor_wait = NoWaits()
    if reporter.drift is not None:
        reporter.drift.budget = WorkBudget(clock=lambda: 0.0)
    return reporter


def schedule(rounds: int, seed: int | None, quiet_steps: int) -> list[tuple[str, int]]:
    """Return faults with their steps: rounds of all, in the order of the list or in orders that a seed gives.

    A rest follows each fault, and quiet steps come before each round.
    """
    found: list[tuple[str, int]] = []
    rng = random.Random(seed)  # noqa: S311 - keeps no secret
    for _ in range(rounds):
        found += [(QUIET, quiet_steps)] if quiet_steps else []
        for fault in IN_TURN if seed is None else rng.sample(list(EXPECTED), len(EXPECTED)):
            found += [(fault, FAULT_STEPS), (NOTHING, REST_STEPS)]
    return found


def named_now(folder: str) -> dict[str, Any]:
    """Return the last report, its causes, and the mean share of time that ranks waited for a processor."""
    file = Path(folder, DRIFT_REPORT_FILE)
    if not file.exists():
        return {"named": [], "wait": None, "report": None}
    report = DriftReport.read(file)
    waits = [times.processor_wait_share for times in report.recent if times.processor_wait_share is not None]
    return {
        "named": [(change.cause, change.ranks, change.tables) for change in report.changes],
        "wait": sum(waits) / len(waits) if waits else None,
        "report": json.loads(report.to_json()),
    }


def main(folder: str, rounds: int = 1, seed: int | None = None, quiet_steps: int = 0) -> None:
    """Train through all faults; rank 0 writes of each, and of the rest after it, what is expected and what was named.

    That is what its last report had; ``reports`` has all of them. Without a seed, times are processor time, which other
    programs disturb least; with one they are those of the trainer's own clock. ``quiet_steps`` come before each round.
    """
    with joined_ranks():
        plan = plan_of(tables=TABLES, world_size=2)
        plan_file = Path(folder, "plan.json")
        if dist.get_rank() == 0:
            write_plan(Path(folder), plan)
        dist.barrier()
        model = sharded_model(dist.group.WORLD, plan)
        reporter = watched(model, plan_file, clock=ThreadClock() if seed is None else None)
        faults = Faults()
        found: list[dict[str, Any]] = []

        def batches() -> Iterator[KeyedJaggedTensor]:
            rng = np.random.default_rng(dist.get_rank())

            def some(count: int, fault: str) -> Iterator[KeyedJaggedTensor]:
                faults.active = fault
                reports: list[dict[str, Any]] = []
                for step in range(1, count + 1):
                    yield batch_under(fault, rng)
                    if step % REPORT_STEPS == 0:
                        reports.append(named_now(folder))
                last = named_now(folder)["named"]
                found.append({"fault": fault, "expected": EXPECTED.get(fault, []), "found": last, "reports": reports})

            yield from some(1, NOTHING)  # TorchRec makes its output dists in the first step
            faults.plant(model)
            yield from some(LEARN_STEPS - 1, NOTHING)
            found.clear()
            for fault, count in schedule(rounds, seed, quiet_steps):
                yield from some(count, fault)

        for batch in reporter.steps(batches()):
            torch.autograd.backward(model(torch.zeros(SAMPLES, 3), batch).sum())
        if dist.get_rank() == 0:
            Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

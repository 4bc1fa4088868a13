"""What `fully_shard` takes of the host next to DistributedDataParallel: processor time by collective, tensor, and byte.

    python -m benchmarks shard_overhead

Stacks of linear layers run forward and backward on two processes over gloo, with two samples, so that their products
take next to nothing: in replicas, ZeRO-2, and ZeRO-3, wrapped as the trainer wraps them. Processor time is that of the
thread that trains, so that gloo's threads, waits for the other process, and other programs are not in it: the median
step of each round, of the least disturbed round. What a sharded stack takes more than replicas is fitted to settings
alone that are not held out.
"""

import argparse
import dataclasses
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.dense_layout import DenseStrategy
from neuroshard_api.process.host_memory import keep_freed_memory
from scipy.optimize import nnls
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import WORLD_SIZE, measured_by_ranks

BATCH_SIZE = 2
STEPS, WARM_UP_STEPS, ROUNDS = 12, 3, 3
MIB = 2**20
PARTS = ("all-gather", "reduce-scatter", "tensor of a sharded unit", "MiB copied")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Equal units of equal linear layers with biases."""

    units: int
    layers: int
    """Of a unit."""
    width: int
    held_out: bool = False

    def counts(self, strategy: DenseStrategy) -> Sequence[float]:
        """Return the numbers of PARTS in a step."""
        gathers = self.units * (2 if strategy is DenseStrategy.ZERO3 else 1)
        weights = 4 * self.layers * (self.width + 1) * self.width
        moved = gathers * 2 * weights * (1 + 1 / WORLD_SIZE) + self.units * 2 * weights
        return gathers, self.units, 2 * self.layers * self.units, moved / MIB

    def __str__(self) -> str:
        return f"{self.units} units of {self.layers} x {self.width}"


STACKS = (
    Stack(units=2, layers=1, width=16),
    Stack(units=8, layers=1, width=16),
    Stack(units=16, layers=1, width=16),
    Stack(units=8, layers=4, width=16),
    Stack(units=4, layers=8, width=16),
    Stack(units=4, layers=1, width=512),
    Stack(units=4, layers=1, width=1024),
    Stack(units=8, layers=2, width=1024),
    Stack(units=12, layers=1, width=16, held_out=True),
    Stack(units=6, layers=3, width=64, held_out=True),
    Stack(units=6, layers=1, width=768, held_out=True),
    Stack(units=3, layers=4, width=1024, held_out=True),
)
SHARDED = (DenseStrategy.ZERO2, DenseStrategy.ZERO3)


def main() -> None:
    """Measure, and write the result; or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        measure(options.measure)
        return
    load = os.getloadavg()[0]
    measured = measured_by_ranks(Path(__file__))
    print(write_result("shard-overhead", report(measured, load=load), hardware=hardware_slug()))


def measure(result: Path) -> None:
    """Run every stack in every strategy on this rank, and write rank 0's times."""
    logging.disable(logging.WARNING)
    keep_freed_memory()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {_key(stack, strategy): [] for stack, strategy in product(STACKS, DenseStrategy)}
    for _ in range(ROUNDS):  # in turns, so that a busy minute does not hit one stack alone
        for stack, strategy in product(STACKS, DenseStrategy):
            found[_key(stack, strategy)].append(_step_ms(stack, strategy))
    if dist.get_rank() == 0:
        result.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()


def _key(stack: Stack, strategy: DenseStrategy) -> str:
    return f"{stack}, {strategy.value}"


def _step_ms(stack: Stack, strategy: DenseStrategy) -> float:
    """Return the processor milliseconds of the median step, forward and backward."""
    torch.manual_seed(0)
    units = [
        nn.Sequential(*(nn.Linear(stack.width, stack.width) for _ in range(stack.layers))) for _ in range(stack.units)
    ]
    model: nn.Module = nn.Sequential(*units)
    if strategy is DenseStrategy.REPLICATE:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)  # as TorchRec does
    else:
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        for unit in units:
            fully_shard(unit, mesh=mesh, reshard_after_forward=strategy is DenseStrategy.ZERO3)
        fully_shard(model, mesh=mesh)
    samples = torch.ones(BATCH_SIZE, stack.width)
    times_ms = []
    for _ in range(WARM_UP_STEPS + STEPS):
        start = time.thread_time()
        torch.autograd.backward(model(samples).sum())
        times_ms.append(1e3 * (time.thread_time() - start))
        model.zero_grad()
    return median(times_ms[WARM_UP_STEPS:])


def report(measured: Mapping[str, Sequence[float]], *, load: float) -> list[str]:
    """Return the lines of the result."""
    least = {key: min(rounds) for key, rounds in measured.items()}
    cases = list(product(STACKS, SHARDED))
    counts = np.array([stack.counts(strategy) for stack, strategy in cases])
    replicas = np.array([least[_key(stack, DenseStrategy.REPLICATE)] for stack, _ in cases])
    sharded = np.array([least[_key(stack, strategy)] for stack, strategy in cases])
    added = sharded - replicas
    fitted = np.array([not stack.held_out for stack, _ in cases])
    parts_ms, _ = nnls(counts[fitted] / sharded[fitted, None], added[fitted] / sharded[fitted])
    predicted = counts @ parts_ms
    errors = predicted / added - 1
    rows = [
        f"| {stack} | {strategy.value} | {'held out' if stack.held_out else 'fitted'} | {replica:.2f} | {ms:.2f} "
        f"(to {max(measured[_key(stack, strategy)]):.2f}) | {more:.2f} | {said:.2f} | {100 * error:+.0f} % |"
        for (stack, strategy), replica, ms, more, said, error in zip(
            cases, replicas, sharded, added, predicted, errors, strict=True
        )
    ]
    held_out = np.abs(errors[~fitted])
    return [
        "# Host time of sharded units",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores; load average {load:.1f} to {os.getloadavg()[0]:.1f}.",
        "",
        *str(__doc__).splitlines()[4:],
        "",
        f"{ROUNDS} rounds of {STEPS} steps each. Processor ms: least round (to highest round).",
        "",
        "| stack | strategy | basis | replicas ms | sharded ms | more | as fitted | error |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Held out: error of what is more at most {100 * held_out.max():.0f} %, mean {100 * held_out.mean():.0f} %.",
        "",
        "| part | processor ms |",
        "|---|---|",
        *(f"| {name} | {ms:.4f} |" for name, ms in zip(PARTS, parts_ms, strict=True)),
        "",
        "On a GPU the copies are the device's, and the host launches them: 2 kernels and the collective of a gather, 1",
        "and the collective of a reduction, read in torch's _fsdp_collectives.py. No GPU was measured.",
    ]


if __name__ == "__main__":
    main()

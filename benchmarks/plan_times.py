"""Predicted and measured embedding time of whole plans, in real training on two processes of this machine.

    python -m benchmarks.plan_times              # profiles this machine first
    python -m benchmarks.plan_times PROFILE      # under a profile of the tables that --tables writes, with
                                                 # --set spec.model.embeddingOptimizer=RowWiseAdagrad, as of a job

Three models under six plans each: those of the neural search, of TorchRec's planner, of two greedy baselines, and two
random ones, all by columns, since the profile measures no other collectives. The plans of a model are trained in turn,
round by round, in the same two processes, each pinned to a core with one thread, gloo between them. Where a process's
tables lie in physical memory changes how long their lookups take, for as long as it lives: so each model's training is
started several times, and makes its plans' tables in another order each time. No plan's table sets are in the profile,
whose sets are drawn at random.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TypeVar

import numpy as np
import torch.distributed as dist
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, SearchSettings
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import TableSet
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.fitting.hold_out import kendall_tau
from neuroshard_planner.pipeline import plan as search
from neuroshard_profiler.devices.core_gauge import CoreGauge
from neuroshard_trainer.measure.step_reporter import StepReporter
from neuroshard_trainer.ranks.clocks import NS_PER_MS, HostClock, Mark

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import (
    BATCH_SIZE,
    BY_COLUMNS,
    MODELS,
    WORLD_SIZE,
    ShardedTraining,
    batches,
    start_process,
    torchrun,
)

ALGORITHMS = (Algorithm.NEUROSHARD, Algorithm.TORCHREC, Algorithm.SIZE_GREEDY, Algorithm.LOOKUP_GREEDY)
RANDOM_SEEDS = range(2)
STARTS = 6  # of each model's training that count
MOST_STARTS = 8
UNDISTURBED = 0.4  # of a start's steps; the least disturbed starts count where MOST_STARTS have no more such
ROUNDS = 2  # of each start
STEPS = 8  # of each plan and round
WARM_UP_STEPS = 2
COMPUTE = ("forward_compute_ms", "backward_compute_ms")
EXCHANGES = ("forward_communication_ms", "backward_communication_ms")
TIMES_FILE = "times.json"

Each = TypeVar("Each")
TimesByPlan = dict[str, list[list[dict[str, list[float]]]]]
"""Of each plan, by round and step: each rank's times, and whether it ran at full speed."""

HEAD = """# Predicted and measured embedding time of whole plans

Machine: {machine}, two cores, shared with other work; load average at the start {start:.1f}, at the end {end:.1f}.
{batch_size} samples per process, row-wise Adagrad, FBGEMM's CPU kernels, two processes over gloo, each on a core of its
own with one thread; plans by columns. Cost models: `{bundle}`, {source}, {num_records}, hold-out error of compute
{error:.1%}.

Measured, median of {starts} fresh starts of the processes, the least disturbed of up to {most_starts}, in each {rounds}
rounds of {steps} steps under each plan, the plans taking turns: compute is processor time of lookups and of backward
kernels with the optimizer, of the slowest process in each; an exchange is the time by the clock of the process that
waits least, first quartile. Processor time leaves out other processes. A process's steps at whose begin or end its core
was slowed by what runs on the same physical core are left out ({left_out:.0%} of them); rounds without others count by
their faster half. Predicted are the same terms. Neither has the exchange of indices."""

FOOT = """| aim | found |
|---|---|
| error of the total at most 10 %, mean of {count} plans | {error:.1%}; largest {largest:.1%}, signed {signed:+.1%} |
| the same of compute alone | {compute_error:.1%}; signed {compute_signed:+.1%} |
| Kendall's tau at least 0.75, total, over all {count} plans | {tau_of_all:.2f} |
| Kendall's tau within each model, total | {tau} |
| the same of compute alone | {compute_tau} |
| what noise allows: tau of the even starts with the odd ones, total | {noise} |
| regret of the chosen plan at most 2 % | {regret} |

The exchange here is gloo's, which copies through sockets with the very cores that compute: it says nothing of a GPU's
network. No number here is one of a GPU."""


TABLE_HEAD = (
    "| model | plan | predicted ms | measured ms (quartiles) | error | compute predicted | measured | error "
    "| exchange predicted | measured |"
)


@dataclass(frozen=True, slots=True)
class Terms:
    """Milliseconds of the embedding part of a step."""

    compute: float
    exchange: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.exchange


@dataclass(frozen=True, slots=True)
class Comparison:
    """One plan."""

    model: str
    name: str
    predicted: Terms
    starts: tuple[Terms, ...]

    @property
    def measured(self) -> Terms:
        """Medians over the starts."""
        return _median(self.starts)


class ProcessorClock(HostClock):
    """Processor time of the calling thread, as a clock of a step reporter."""

    def mark(self) -> Mark:
        """Return the thread's processor time."""
        return time.thread_time_ns()

    def read_ms(self, marks: Sequence[Mark]) -> list[float]:
        """Return the differences."""
        times = [mark for mark in marks if isinstance(mark, int)]
        return [(each - times[0]) / NS_PER_MS for each in times]


def main() -> None:
    """Plan, train and write the result; or be one of the processes that train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?", help="what `neuroshard profile` wrote")
    parser.add_argument("--tables", type=Path, help="write the tables of all models to this file, and end")
    parser.add_argument("--train", nargs=3, metavar=("MODEL", "FOLDER", "START"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        model, folder, start = options.train
        train(next(each for each in MODELS if each.name == model), Path(folder), start=int(start))
    elif options.tables is not None:
        write_tables(options.tables)
    elif options.profile is not None:
        measure(options.profile)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            measure(new_profile(Path(scratch), all_tables(), batch_size=BATCH_SIZE))


def write_tables(file: Path) -> None:
    """Write the tables of all models."""
    file.write_text(all_tables().to_json())


def all_tables() -> TableSet:
    """Return the tables of all models."""
    return TableSet(name="all", tables=tuple(table for model in MODELS for table in model.tables))


def new_profile(folder: Path, tables: TableSet, *, batch_size: int) -> Path:
    """Profile tables on two processes of this machine, with a number of samples of each; return where."""
    (folder / "tables.json").write_text(tables.to_json())
    command = [sys.executable, "-c", "from neuroshard_cli.main import main; main()", "profile"]
    command += [str(folder / "tables.json"), "--set", f"spec.model.batchSizePerDevice={batch_size}"]
    command += ["--set", "spec.model.embeddingOptimizer=RowWiseAdagrad"]  # as the profile of a job measures its own
    command += ["--set", f"spec.trainer.numProcPerNode={WORLD_SIZE}", "--out", str(folder / "profile")]
    subprocess.run(command, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # noqa: S603 - the project's own command
    return folder / "profile"


def measure(profile: Path) -> None:
    """Plan and train every model, and write the result."""
    start = os.getloadavg()[0]
    compared, left_out = [], []
    for tables in MODELS:
        found, share = compared_plans(profile, tables)
        compared += found
        left_out.append(share)
    lines = report(profile, compared, left_out=mean(left_out), start_load=start)
    print(write_result("plan-times", lines, hardware=hardware_slug()))


def compared_plans(profile: Path, tables: TableSet) -> tuple[list[Comparison], float]:
    """Return a model's plans, predicted and measured, and the share of steps that was left out."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plans = make_plans(profile, tables, folder)
        times = _least_disturbed(tables.name, folder)
    compared = [
        Comparison(
            tables.name,
            name,
            _predicted(plan),
            tuple(_median([_measured(steps) for steps in each[name]]) for each in times),
        )
        for name, plan in plans.items()
    ]
    return compared, 1 - mean(_share_undisturbed(each) for each in times)


def _least_disturbed(model: str, folder: Path) -> list[TimesByPlan]:
    """Start the training until enough starts ran at full speed, by what says nothing of its times; return those."""
    times: list[TimesByPlan] = []
    while len(times) < MOST_STARTS and sum(_share_undisturbed(each) >= UNDISTURBED for each in times) < STARTS:
        times.append(_times(model, folder, start=len(times)))
    return sorted(times, key=_share_undisturbed)[-STARTS:]


def _share_undisturbed(times: TimesByPlan) -> float:
    return mean(rank for rounds in times.values() for steps in rounds for step in steps for rank in step["full_speed"])


def _times(model: str, folder: Path, *, start: int) -> TimesByPlan:
    """Train in fresh processes; return what they measured, by plan and round."""
    command = [sys.executable, *torchrun(Path(__file__), "--train", model, str(folder), str(start))]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - this script
    times: TimesByPlan = json.loads((folder / TIMES_FILE).read_text())
    return times


def make_plans(profile: Path, tables: TableSet, folder: Path) -> dict[str, Plan]:
    """Write a model's plans to ``<name>.plan.json`` and return them by name."""
    hardware = Hardware.read(profile / "hardware.json")
    bundle = load_bundle(profile / "bundle")
    request = PlanRequest(
        tables=tables,
        topology=hardware.topology(num_nodes=1, devices_per_node=WORLD_SIZE),
        batch_size_per_device=BATCH_SIZE,
        constraints=Constraints(sharding_types=BY_COLUMNS),
    )
    wanted = {str(algorithm): request.model_copy(update={"algorithm": algorithm}) for algorithm in ALGORITHMS}
    for seed in RANDOM_SEEDS:
        update = {"algorithm": Algorithm.RANDOM, "search": SearchSettings(seed=seed)}
        wanted[f"random {seed}"] = request.model_copy(update=update)
    plans = {name: search(each, bundle=bundle) for name, each in wanted.items()}
    for name, plan in plans.items():
        (folder / f"{name}.plan.json").write_text(plan.to_json())
    return plans


def train(tables: TableSet, folder: Path, *, start: int) -> None:
    """Train under the plans in turn and write, by plan, round, and step, what each rank measured.

    The number of the start says which plan's tables are made first.
    """
    start_process()
    data = batches(tables=tables)
    trainings: dict[str, ShardedTraining] = {}
    reporters: dict[str, tuple[StepReporter, StepReporter]] = {}
    by_clock: list[StepReport] = []
    by_processor: list[StepReport] = []
    files = sorted(folder.glob("*.plan.json"))
    for file in _turned(files, start):
        name = file.name.removesuffix(".plan.json")
        trainings[name] = ShardedTraining(Plan.read(file), tables)
        model = trainings[name].model
        reporters[name] = (
            StepReporter(model, file, write=by_clock.append, report_every=1, window=1),
            StepReporter(model, file, write=by_processor.append, report_every=1, window=1, clock=ProcessorClock()),
        )
    gauge = CoreGauge()
    times: TimesByPlan = {name: [] for name in trainings}
    names = list(trainings)
    for turn in range(ROUNDS):
        for name in _turned(names, turn):
            clock, processor = reporters[name]
            full_speed = []
            for batch in clock.steps(processor.steps([data[step % len(data)] for step in range(STEPS)])):
                before = gauge.slowed_by() is None
                trainings[name].step(batch)
                processor.end_step()
                clock.end_step()
                full_speed.append(before and gauge.slowed_by() is None)
            everyone: list[list[bool]] = [[] for _ in range(WORLD_SIZE)]
            dist.all_gather_object(everyone, full_speed)
            if dist.get_rank() == 0:
                steps = [_step(*pair) for pair in zip(by_clock, by_processor, strict=True)]
                for step, *speeds in zip(steps, *everyone, strict=True):
                    step["full_speed"] = [float(each) for each in speeds]
                times[name].append(steps[WARM_UP_STEPS:])
                by_clock.clear()
                by_processor.clear()
    if dist.get_rank() == 0:
        (folder / TIMES_FILE).write_text(json.dumps(times))
    dist.barrier()
    os._exit(0)  # gloo's threads of plans with copied tables abort an orderly end of the interpreter


def _turned(several: list[Each], turn: int) -> list[Each]:
    """Return them from that one on, and then those before it."""
    first = turn % len(several)
    return several[first:] + several[:first]


def report(profile: Path, compared: Sequence[Comparison], *, left_out: float, start_load: float) -> list[str]:
    """Return the lines of the result."""
    bundle = load_bundle(profile / "bundle").manifest
    num_lines = sum(path.read_bytes().count(b"\n") for path in (profile / "records").glob("*.jsonl"))
    head = HEAD.format(
        machine=cpu_model(),
        start=start_load,
        end=os.getloadavg()[0],
        batch_size=BATCH_SIZE,
        bundle=bundle.name,
        source=bundle.source,
        num_records=f"{num_lines:,} records",
        error=bundle.networks[0].hold_out.mape,
        starts=STARTS,
        most_starts=MOST_STARTS,
        rounds=ROUNDS,
        steps=STEPS - WARM_UP_STEPS,
        left_out=left_out,
    )
    lines = [
        *head.splitlines(),
        "",
        TABLE_HEAD,
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in sorted(compared, key=lambda each: (each.model, each.measured.total)):
        cells = [
            each.model,
            each.name,
            f"{each.predicted.total:.2f}",
            spread([terms.total for terms in each.starts]),
            f"{each.predicted.total / each.measured.total - 1:+.0%}",
            f"{each.predicted.compute:.2f}",
            f"{each.measured.compute:.2f}",
            f"{each.predicted.compute / each.measured.compute - 1:+.0%}",
            f"{each.predicted.exchange:.2f}",
            f"{each.measured.exchange:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    errors = np.array([each.predicted.total / each.measured.total - 1 for each in compared])
    of_compute = np.array([each.predicted.compute / each.measured.compute - 1 for each in compared])
    models = {model.name: [each for each in compared if each.model == model.name] for model in MODELS}
    foot = FOOT.format(
        count=len(compared),
        error=np.abs(errors).mean(),
        largest=np.abs(errors).max(),
        signed=errors.mean(),
        compute_error=np.abs(of_compute).mean(),
        compute_signed=of_compute.mean(),
        tau_of_all=_tau(compared, lambda terms: terms.total),
        tau=_by_model({name: _tau(plans, lambda terms: terms.total) for name, plans in models.items()}),
        compute_tau=_by_model({name: _tau(plans, lambda terms: terms.compute) for name, plans in models.items()}),
        noise=_by_model({name: _noise(plans) for name, plans in models.items()}),
        regret=", ".join(f"{name} {_regret(plans):.1%}" for name, plans in models.items()),
    )
    return [*lines, "", *foot.splitlines()]


def _step(by_clock: StepReport, by_processor: StepReport) -> dict[str, list[float]]:
    """Return the ranks' compute by processor time, and their exchanges by the clock."""
    return {part: [getattr(rank, part) for rank in by_processor.ranks] for part in COMPUTE} | {
        part: [getattr(rank, part) for rank in by_clock.ranks] for part in EXCHANGES
    }


def _measured(steps: Sequence[dict[str, list[float]]]) -> Terms:
    """Return a round's terms: of each rank by its undisturbed steps, or by the faster half where there are none."""
    compute = [max(_undisturbed_ms(steps, part, rank) for rank in range(WORLD_SIZE)) for part in COMPUTE]
    exchange = [float(np.quantile([min(step[part]) for step in steps], 0.25)) for part in EXCHANGES]
    return Terms(sum(compute), sum(exchange))


def _undisturbed_ms(steps: Sequence[dict[str, list[float]]], part: str, rank: int) -> float:
    times = [step[part][rank] for step in steps if step["full_speed"][rank]]
    return median(times or sorted(step[part][rank] for step in steps)[: len(steps) // 2])


def _predicted(plan: Plan) -> Terms:
    devices = plan.predicted.devices
    compute = [max(getattr(cost, part) for cost in devices) for part in COMPUTE]
    return Terms(sum(compute), sum(getattr(devices[0], part) for part in EXCHANGES))


def _median(rounds: Sequence[Terms]) -> Terms:
    return Terms(median(each.compute for each in rounds), median(each.exchange for each in rounds))


def _tau(plans: Sequence[Comparison], of: Callable[[Terms], float]) -> float:
    return kendall_tau(
        np.array([of(each.predicted) for each in plans]), np.array([of(each.measured) for each in plans])
    )


def _noise(plans: Sequence[Comparison]) -> float:
    """Return the rank correlation of the even starts with the odd ones."""
    halves = [np.array([_median(each.starts[first::2]).total for each in plans]) for first in (0, 1)]
    return kendall_tau(*halves)


def _regret(plans: Sequence[Comparison]) -> float:
    """Return the excess time of the neural search's plan over the fastest plan."""
    chosen = next(each for each in plans if each.name == Algorithm.NEUROSHARD)
    return chosen.measured.total / min(each.measured.total for each in plans) - 1


def _by_model(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items()) + f"; mean {mean(values.values()):.2f}"


def spread(values: Sequence[float]) -> str:
    """Return the median with the quartiles."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return f"{median(ordered):.2f} ({ordered[quarter]:.2f} to {ordered[-1 - quarter]:.2f})"


if __name__ == "__main__":
    main()

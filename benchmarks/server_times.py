"""Predicted and measured time of tables on an embedding server, of 12 plans on two processes of this machine.

    python -m benchmarks.server_times              # profiles this machine first
    python -m benchmarks.server_times PROFILE      # under a profile of the tables that --tables writes, with
                                                   # --set spec.model.embeddingOptimizer=RowWiseAdagrad
    python -m benchmarks.server_times --parts FOLDER --minutes 5    # keeps the profile and what plans were measured

Four sets of tables at three batch sizes, each on one server with one trainer, both on a core of their own. First, a
step is what the trainer does with these tables alone: ids, lookups, pooled embeddings, gradients, updates, until both
are done, less the barrier that says so. Then the trainer has a dense part too, and steps follow each other without a
barrier, exact and with lookahead, by the trainer's own classes. Predicted are the sum of the server's time and that of
the trainer without it, which is measured, and with lookahead what a plan makes of these two; no constant of it is from
these steps. Measured is the first quartile by the clock, for other work only adds: of the steps, and of means of 5 in
a row where they overlap.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Pipeline, PlanRequest
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.job.model import Architecture, CrossNetwork, EmbeddingTable, Model
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.fitting.hold_out import kendall_tau
from neuroshard_costs.servers import exchange_work_ms, hidden_ahead_ms
from neuroshard_planner.pipeline import plan as search
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.dlrm import bag_collection
from neuroshard_trainer.servers.lookahead import Lookahead
from neuroshard_trainer.servers.model import RowsAhead, ServedModel, ServerModel, sharded_far
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from benchmarks.kept_parts import add_options, kept_parts
from benchmarks.plan_times import new_profile
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import CPU, start_process, torchrun

BATCH_SIZES = (1024, 2048, 4096)
SETS: dict[str, Sequence[tuple[int, int, float]]] = {
    "one table": ((1_000_000, 64, 1.0),),
    "four of one lookup": ((500_000, 64, 1.0), (400_000, 32, 1.0), (300_000, 64, 1.0), (200_000, 128, 1.0)),
    "narrow, four lookups": ((2_000_000, 16, 4.0),),
    "wide": ((300_000, 128, 2.0), (300_000, 192, 1.0), (100_000, 256, 1.0)),
}
"""Rows, columns, and lookups per sample of the tables on the server."""
NEAR = Table(name="near", num_embeddings=1000, embedding_dim=8)
SERVER_BYTES = 6 * 2**30
STEPS, WARM_UP_STEPS = 60, 10
BLOCK = 5
"""Steps whose mean is one measurement where steps overlap."""
NUM_BATCHES = 8
NUM_DENSE = 13
MODEL = Model(
    embedding_tables=(EmbeddingTable(name="near", num_embeddings=1000, embedding_dim=8),),  # read from plans
    architecture=Architecture.DCN_V2,
    cross_network=CrossNetwork(num_layers=1, low_rank_dim=16),
    num_dense_features=NUM_DENSE,
    dense_arch_layer_sizes=(64,),
    over_arch_layer_sizes=(64,),
)
PLAN_FILE, TIMES_FILE = "plan.json", "times.json"
MOST_ERROR, LEAST_TAU = 0.25, 0.7
STEPS_HEAD = (
    "| with a dense part | it alone, ms | exact: predicted | measured | error | ahead: predicted | measured | error |",
    "|---|---|---|---|---|---|---|---|",
)
WAYS = {"server": "the server alone", "exact": "exact steps", "ahead": "steps with lookahead"}


def main() -> None:
    """Plan, measure, and write the result; or be one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?", help="what `neuroshard profile` wrote")
    parser.add_argument("--tables", type=Path, help="write the tables of all sets to this file, and end")
    add_options(parser)
    parser.add_argument("--steps", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps is not None:
        run_steps(options.steps)
    elif options.tables is not None:
        options.tables.write_text(_all_tables().to_json())
    else:
        with kept_parts(options) as kept:
            profile: Path = options.profile or kept.folder / "profile"
            if not (profile / "bundle").exists():
                new_profile(kept.folder, _all_tables(), batch_size=BATCH_SIZES[1])
            plans = _plans(profile)
            found = kept.measured({name: partial(measured, plan) for name, plan in plans.items()})
        if found is not None:
            print(write_result("server-times", _report(plans, found, profile), hardware=hardware_slug()))


def measured(plan: Plan) -> dict[str, Any]:
    """Return the milliseconds of steps under a plan by way, with the machine's load before them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / PLAN_FILE).write_text(plan.to_json())
        command = [sys.executable, *torchrun(Path(__file__), "--steps", str(folder))]
        load = os.getloadavg()[0]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - this script
        return {"load": load, **json.loads((folder / TIMES_FILE).read_text())}


def run_steps(folder: Path) -> None:
    """Run the steps of a plan; rank 0 is the trainer, rank 1 the server. Writes milliseconds by way."""
    start_process()
    plan = Plan.read(folder / PLAN_FILE)
    times = {"server": _steps(plan), **_whole_steps(plan)}
    if dist.get_rank() == 0:
        (folder / TIMES_FILE).write_text(json.dumps(times))
    dist.barrier()
    os._exit(0)  # gloo's threads abort an orderly end of the interpreter


def _steps(plan: Plan) -> list[float]:
    served = plan.of_servers
    assert served is not None, "every plan has a server"
    sharder = embedding_sharder(Optimizer.ROWWISE_ADAGRAD, learning_rate=0.01, device=CPU)
    far = sharded_far(bag_collection(served.resolved.tables.tables), plan, sharder)
    samples = plan.request.batch_size_per_device if dist.get_rank() == 0 else 0
    data = [_lookups(served.resolved.tables.tables, samples, seed=seed) for seed in range(NUM_BATCHES)]
    times = []
    for step in range(STEPS):
        dist.barrier()
        begin = time.perf_counter()
        pooled = far(data[step % NUM_BATCHES]).values()
        pooled.backward(torch.ones_like(pooled))
        done = time.perf_counter()
        dist.barrier()
        met = time.perf_counter()
        dist.barrier()
        barrier = time.perf_counter() - met
        times.append(1e3 * (max(met - begin - barrier, done - begin)))
    return times[WARM_UP_STEPS:]


class _DenseOptimizer:
    """What a training calls of a StepOptimizer's, without schedules."""

    def __init__(self, model: nn.Module) -> None:
        weights = [*model.dense_arch.parameters(), *_joined(model)] if isinstance(model, ServedModel) else []
        self._own = torch.optim.SGD(weights, lr=0.01) if weights else None

    def zero_grad(self) -> None:
        """Forget the gradients."""
        if self._own is not None:
            self._own.zero_grad()

    def set_rates(self, step: int) -> None:
        """Leave the rates of the tables as they are."""

    def step(self) -> None:
        """Update the dense part."""
        if self._own is not None:
            self._own.step()


def _joined(model: nn.Module) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if name.startswith(("interaction.", "over_arch."))]


def _whole_steps(plan: Plan) -> Mapping[str, list[float]]:
    """Return the times of steps with a dense part: of the trainer alone, exact, and with lookahead."""
    served = plan.of_servers
    assert served is not None, "every plan has a server"
    sharder = embedding_sharder(Optimizer.ROWWISE_ADAGRAD, learning_rate=0.01, device=CPU)
    far = served.resolved.tables.tables
    is_server = dist.get_rank() != 0
    model: ServedModel | ServerModel
    if is_server:
        model = ServerModel(plan, sharder)
    else:
        model = ServedModel(MODEL, (NEAR, *far), far)
        collections = cast("nn.ModuleList", model.tables)
        collections[0].to_empty(device=CPU)
        nn.init.zeros_(next(collections[0].parameters()))
        collections[1] = sharded_far(collections[1], plan, sharder)
    optimizer = _DenseOptimizer(model)
    samples = 0 if is_server else plan.request.batch_size_per_device
    data = [_batch(far, samples, seed=seed) for seed in range(NUM_BATCHES)]

    def loss(batch: Batch) -> torch.Tensor:
        logits: torch.Tensor = model(*batch.inputs)
        return logits.sum() if is_server else binary_cross_entropy_with_logits(logits.view(-1), batch.labels)

    def step(batches: Iterator[Batch]) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss(next(batches)))
        optimizer.step()

    def step_alone(batches: Iterator[Batch]) -> None:
        if not is_server:
            rows = model.ahead.rows = RowsAhead(_rows(far, samples))
            step(batches)
            assert rows.values().grad is not None, "a step makes them"
            model.ahead.rows = None

    lookahead = Lookahead(model, cast("StepOptimizer", optimizer), loss, step=0, is_exact=lambda _step: False)
    alone, exact = _blocks(step_alone, data), _blocks(step, data)
    ahead = _blocks(lookahead.progress, data, finish=lookahead.detach)
    return {"alone": alone, "exact": exact, "ahead": ahead}


def _blocks(
    step: Callable[[Iterator[Batch]], object], data: Sequence[Batch], finish: Callable[[], None] | None = None
) -> list[float]:
    """Return the mean milliseconds of steps by block, as they follow each other.

    Args:
        step: takes the next of the batches.
        data: of which steps take one after the other.
        finish: waits for exchanges of other threads, which a barrier of the same group must not overtake.
    """
    batches = itertools.islice(itertools.cycle(data), STEPS)
    times = []
    dist.barrier()
    for _ in range(STEPS // BLOCK):
        begin = time.perf_counter()
        for _ in range(BLOCK):
            step(batches)
        times.append(1e3 * (time.perf_counter() - begin) / BLOCK)
    if finish is not None:
        finish()
    dist.barrier()
    return times[WARM_UP_STEPS // BLOCK :]


def _batch(far: Sequence[Table], samples: int, *, seed: int) -> Batch:
    lookups = _lookups((NEAR, *far), samples, seed=seed).split([1, len(far)])
    return Batch(
        dense=torch.rand(samples, NUM_DENSE),
        lookups=lookups[0],
        labels=torch.randint(2, (samples,)).float(),
        num_real=samples,
        group_lookups=(lookups[1],),
    )


def _rows(far: Sequence[Table], samples: int) -> "Future[KeyedTensor]":
    """Return pooled embeddings of tables that are there already."""
    widths = [table.embedding_dim for table in far]
    found: Future[KeyedTensor] = Future()
    found.set_result(KeyedTensor([table.name for table in far], widths, torch.zeros(samples, sum(widths))))
    return found


def _lookups(tables: Sequence[Table], samples: int, *, seed: int) -> KeyedJaggedTensor:
    """Return random rows for each sample and table, equally many for each sample."""
    torch.manual_seed(seed)
    values = [torch.randint(table.num_embeddings, (int(samples * table.pooling_factor),)) for table in tables]
    lengths = [torch.full((samples,), int(table.pooling_factor), dtype=torch.int32) for table in tables]
    names = [table.name for table in tables]
    return KeyedJaggedTensor(keys=names, values=torch.cat(values), lengths=torch.cat(lengths))


def _plans(profile: Path) -> dict[str, Plan]:
    """Return the plans by name, each with all tables of a set on the server."""
    topology = Hardware.read(profile / "hardware.json").topology(num_nodes=1, devices_per_node=1)
    bundle = load_bundle(profile / "bundle")
    found = {}
    for name in SETS:
        tables = _tables(name)
        pool = ServerPool(count=1, memory_bytes=SERVER_BYTES, tables=tuple(table.name for table in tables))
        for batch_size in BATCH_SIZES:
            request = PlanRequest(
                tables=TableSet(name=name, tables=(NEAR, *tables)),
                topology=topology,
                batch_size_per_device=batch_size,
                pipeline=Pipeline.NONE,
                servers=pool,
            )
            found[f"{name}, {batch_size:,} samples"] = search(request, bundle=bundle)
    return found


def _tables(name: str) -> tuple[Table, ...]:
    return tuple(
        Table(
            name=f"{name.partition(',')[0].replace(' ', '_')}{index}",
            num_embeddings=rows,
            embedding_dim=columns,
            pooling_factor=pooling,
            zipf_exponent=0.0,
        )
        for index, (rows, columns, pooling) in enumerate(SETS[name])
    )


def _all_tables() -> TableSet:
    return TableSet(name="served", tables=(NEAR, *(table for name in SETS for table in _tables(name))))


def _report(plans: Mapping[str, Plan], found: Mapping[str, Any], profile: Path) -> list[str]:
    """Return the lines of the result."""
    bundle = load_bundle(profile / "bundle")
    manifest = bundle.manifest
    loads = [each["load"] for each in found.values()]
    tables: dict[str, list[tuple[str, float, Sequence[float]]]] = {"server": [], "exact": [], "ahead": []}
    rows = []
    for name, plan in plans.items():
        assert plan.servers is not None, "every plan has a server"
        assert plan.servers.predicted is not None, "every plan has a price"
        own, server_ms = found[name], plan.servers.predicted.total_ms
        work_ms = exchange_work_ms(plan.servers.predicted, plan.request.topology, bundle)
        alone_ms = _quartile(own["alone"])
        expected = {
            "server": server_ms,
            "exact": alone_ms + server_ms,
            "ahead": alone_ms + server_ms - hidden_ahead_ms(server_ms, alone_ms, work_ms=work_ms),
        }
        for way, times in tables.items():
            times.append((name, expected[way], own[way]))
        rows.append(
            f"| {name} | {alone_ms:.2f} | {_compared(expected['exact'], own['exact'])} "
            f"| {_compared(expected['ahead'], own['ahead'])} |"
        )
    return [
        "# Predicted and measured time of an embedding server",
        "",
        f"Machine: {cpu_model()}; load average before the plans {min(loads):.1f} to {max(loads):.1f}.",
        f"Cost models: `{manifest.name}`, {manifest.source}.",
        "",
        *str(__doc__).splitlines()[7:],
        "",
        "| the server alone | predicted ms | measured ms, first quartile | median | third quartile | error |",
        "|---|---|---|---|---|---|",
        *(_server_row(*each) for each in tables["server"]),
        "",
        *STEPS_HEAD,
        *rows,
        "",
        f"Aims: a mean error of at most {MOST_ERROR:.0%}, Kendall's tau of at least {LEAST_TAU}, {len(plans)} plans.",
        "",
        "| predicted and measured | mean error | largest | signed | Kendall's tau |",
        "|---|---|---|---|---|",
        *(_verdict(WAYS[way], times) for way, times in tables.items()),
        "",
        "The exchange is gloo's over loopback: it says nothing of a network.",
    ]


def _quartile(times: Sequence[float]) -> float:
    return float(np.percentile(times, 25))


def _compared(expected: float, times: Sequence[float]) -> str:
    low = _quartile(times)
    return f"{expected:.2f} | {low:.2f} | {expected / low - 1:+.0%}"


def _server_row(name: str, expected: float, times: Sequence[float]) -> str:
    low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
    return f"| {name} | {expected:.2f} | {low:.2f} | {middle:.2f} | {high:.2f} | {expected / low - 1:+.0%} |"


def _verdict(what: str, times: Sequence[tuple[str, float, Sequence[float]]]) -> str:
    predicted, measured_ms = [each[1] for each in times], [_quartile(each[2]) for each in times]
    changes = [first / second - 1 for first, second in zip(predicted, measured_ms, strict=True)]
    tau = kendall_tau(np.array(predicted), np.array(measured_ms))
    return (
        f"| {what} | {mean(map(abs, changes)):.0%} | {max(map(abs, changes)):.0%} | {mean(changes):+.0%} | {tau:.2f} |"
    )


if __name__ == "__main__":
    main()

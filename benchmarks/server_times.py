"""Predicted and measured time of tables on an embedding server, of 12 plans on two processes of this machine.

    python -m benchmarks.server_times              # profiles this machine first
    python -m benchmarks.server_times PROFILE      # under a profile of the tables that --tables writes, with
                                                   # --set spec.model.embeddingOptimizer=RowWiseAdagrad

Four sets of tables at three batch sizes, each on one server with one trainer, both on a core of their own. A step is
what the trainer does with these tables alone: ids, lookups, pooled embeddings, gradients, updates, until both are done,
less the barrier that says so. Measured is the first quartile of the steps by the clock, for other work only adds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Pipeline, PlanRequest
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.fitting.hold_out import kendall_tau
from neuroshard_planner.pipeline import plan as search
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.dlrm import bag_collection
from neuroshard_trainer.servers.model import sharded_far
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

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
NUM_BATCHES = 8
TIMES_FILE = "times.json"
MOST_ERROR, LEAST_TAU = 0.25, 0.7


def main() -> None:
    """Plan, measure, and write the result; or be one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?", help="what `neuroshard profile` wrote")
    parser.add_argument("--tables", type=Path, help="write the tables of all sets to this file, and end")
    parser.add_argument("--steps", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps is not None:
        run_steps(options.steps)
    elif options.tables is not None:
        options.tables.write_text(_all_tables().to_json())
    elif options.profile is not None:
        measure(options.profile)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            measure(new_profile(Path(scratch), _all_tables(), batch_size=BATCH_SIZES[1]))


def measure(profile: Path) -> None:
    """Plan all sets, measure them, and write the result."""
    begin = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plans = _plans(profile)
        for index, plan in enumerate(plans.values()):
            (folder / f"{index:02}.plan.json").write_text(plan.to_json())
        command = [sys.executable, *torchrun(Path(__file__), "--steps", str(folder))]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - this script
        times: list[list[float]] = json.loads((folder / TIMES_FILE).read_text())
    print(write_result("server-times", _report(plans, times, profile, begin), hardware=hardware_slug()))


def run_steps(folder: Path) -> None:
    """Run the steps of each plan in turn; rank 0 is the trainer, rank 1 the server. Writes milliseconds by plan."""
    start_process()
    times = [_steps(Plan.read(file)) for file in sorted(folder.glob("*.plan.json"))]
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


def _report(plans: dict[str, Plan], times: Sequence[Sequence[float]], profile: Path, begin: float) -> list[str]:
    """Return the lines of the result."""
    manifest = load_bundle(profile / "bundle").manifest
    rows, predicted, measured = [], [], []
    for (name, plan), own in zip(plans.items(), times, strict=True):
        assert plan.servers is not None, "every plan has a server"
        assert plan.servers.predicted is not None, "every plan has a price"
        low, middle, high = np.percentile(own, (25, 50, 75)).tolist()
        expected = plan.servers.predicted.total_ms
        predicted.append(expected)
        measured.append(low)
        rows.append(f"| {name} | {expected:.2f} | {low:.2f} | {middle:.2f} | {high:.2f} | {expected / low - 1:+.0%} |")
    errors = [abs(first / second - 1) for first, second in zip(predicted, measured, strict=True)]
    signed = mean(first / second - 1 for first, second in zip(predicted, measured, strict=True))
    tau = kendall_tau(np.array(predicted), np.array(measured))
    found = f"{mean(errors):.0%}; largest {max(errors):.0%}, signed {signed:+.0%}"
    return [
        "# Predicted and measured time of an embedding server",
        "",
        f"Machine: {cpu_model()}; load average at the start {begin:.1f}, at the end {os.getloadavg()[0]:.1f}.",
        f"Cost models: `{manifest.name}`, {manifest.source}.",
        "",
        *str(__doc__).splitlines()[6:],
        "",
        "| plan | predicted ms | measured ms, first quartile | median | third quartile | error |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "| aim | found |",
        "|---|---|",
        f"| error at most {MOST_ERROR:.0%}, mean of {len(errors)} plans | {found} |",
        f"| Kendall's tau at least {LEAST_TAU} | {tau:.2f} |",
        "",
        "The exchange is gloo's over loopback: it says nothing of a network.",
    ]


if __name__ == "__main__":
    main()

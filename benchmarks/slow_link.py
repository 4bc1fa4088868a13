"""Steps of two processes over a link of 1 Gb/s: exact and in narrow types, predicted and measured.

    python -m benchmarks.slow_link [--profile FOLDER]     # as root of a Linux with ip and tc

Two network namespaces of this machine stand for two nodes; a virtual cable joins them, whose rate `tc` limits in each
direction, with a queue of 10 ms as a switch may have. `neuroshard profile --meet` measures both nodes, the planner
plans on that profile under each pair of types, and two processes, each in a namespace of its own, on a core of its own,
and with one thread, train under all plans in turn, over gloo. Bytes are those that the kernel counts on the cable.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import torch
import torch.distributed as dist
from neuroshard_api.documents.communication import CommunicationChoices, WireType, WireTypes
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.job.training_job import API_VERSION, KIND, DLRMTrainingJob
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_costs.bundle import load_bundle
from neuroshard_planner.pipeline import plan as search
from neuroshard_trainer.dense_profile import dense_profile

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import BY_COLUMNS, NUM_DENSE, WORLD_SIZE, ShardedTraining, batches

RATE_GBIT = 1
CABLE = "cable0"
ADDRESSES = ("10.99.0.1", "10.99.0.2")
PROFILE_PORT, TRAINING_PORT = 29_610, 29_611
BATCH_SIZE = 2048  # of each process
COLUMNS = 256
TABLES = TableSet(
    name="slow-link",
    tables=tuple(Table(name=f"t{index}", num_embeddings=10_000, embedding_dim=COLUMNS) for index in range(8)),
)
LAYERS = [32]
EXACT = WireTypes()
PAIRS = tuple(
    WireTypes(forward=WireType(forward), backward=WireType(backward))
    for forward, backward in (
        ("FP32", "FP32"),
        ("FP16", "FP16"),
        ("INT8", "FP16"),
        ("INT8", "INT8"),
        ("TOP32", "TOP32"),
        ("TOP16", "TOP16"),
        ("TOP8", "TOP8"),
    )
)
ROUNDS, STEPS, WARM_UP_STEPS = 6, 6, 1
TIMES_FILE = "times.json"
PERCENT = 100
MAX_SECONDS = 900
"""Of a profile or a training, before both processes are ended."""


def main() -> None:
    """Measure and write the result; or be one of the processes that train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="of an earlier run of this script; default: measured first")
    parser.add_argument("--budget", default="4m", help="time for the profile")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return
    with tempfile.TemporaryDirectory() as scratch, two_nodes() as nodes:
        folder = Path(scratch)
        profile = options.profile or folder / "profile"
        if not (profile / "bundle").exists():
            measure_nodes(nodes, profile, budget=options.budget)
        plans = make_plans(profile)
        for name, plan in plans.items():
            (folder / f"{name}.plan.json").write_text(plan.to_json())
        start = os.getloadavg()[0]
        on_both(nodes, lambda _: ["-m", "benchmarks.slow_link", "--train", str(folder)], port=TRAINING_PORT)
        times = json.loads((folder / TIMES_FILE).read_text())
        lines = report(profile, plans, times, start_load=start)
    print(write_result("slow-link", lines, hardware=hardware_slug()))


@contextmanager
def two_nodes() -> Iterator[tuple[str, str]]:
    """Yield the names of two network namespaces that a cable of the limited rate joins."""
    first, second = names = (f"slow-link-{os.getpid()}-0", f"slow-link-{os.getpid()}-1")
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "-n", first, "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", second)
        for name, address in zip(names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", CABLE, "up")
            limit = ["rate", f"{RATE_GBIT}gbit", "burst", "256kb", "latency", "10ms"]
            _run("tc", "-n", name, "qdisc", "add", "dev", CABLE, "root", "tbf", *limit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)  # noqa: S603, S607


def on_both(nodes: tuple[str, str], arguments: Callable[[int], Sequence[str]], *, port: int) -> None:
    """Run Python on both nodes at once with these arguments by rank, and wait for both.

    Raises:
        SystemExit: one failed, or both took too long; neither runs any more.
    """
    processes = []
    for rank, name in enumerate(nodes):
        own = {
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": CABLE,
            "RANK": str(rank),
            "WORLD_SIZE": str(WORLD_SIZE),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "PET_NODE_RANK": str(rank),
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": str(port),
        }
        command = ["ip", "netns", "exec", name, sys.executable, *arguments(rank)]
        processes.append(subprocess.Popen(command, env={**os.environ, **own}))  # noqa: S603 - this script
    end = time.monotonic() + MAX_SECONDS
    try:
        for process in processes:
            if process.wait(max(end - time.monotonic(), 1)):
                raise SystemExit(f"a process ended with {process.returncode}")
    finally:
        for process in processes:
            process.kill()


def measure_nodes(nodes: tuple[str, str], profile: Path, *, budget: str) -> None:
    """Profile both nodes; node 0 writes the profile."""
    profile.mkdir(parents=True)
    tables = profile / "tables.json"
    tables.write_text(TABLES.to_json())
    options = [str(tables), "--budget", budget, "--meet", f"{ADDRESSES[0]}:{PROFILE_PORT}"]
    fields = {"model.batchSizePerDevice": BATCH_SIZE, "model.embeddingOptimizer": "RowWiseAdagrad"}
    fields |= {"trainer.numNodes": 2, "trainer.numProcPerNode": 1}
    for path, value in fields.items():
        options += ["--set", f"spec.{path}={value}"]

    def arguments(rank: int) -> list[str]:
        out = profile if rank == 0 else profile / "peer"
        return ["-m", "neuroshard_profiler", "profile", *options, "--out", str(out)]

    on_both(nodes, arguments, port=TRAINING_PORT)


def make_plans(profile: Path) -> dict[str, Plan]:
    """Return the plan under each pair of types by its text, and that of Auto, which may take any of them."""
    hardware, bundle = Hardware.read(profile / "hardware.json"), load_bundle(profile / "bundle")
    request = PlanRequest(
        tables=TABLES,
        topology=hardware.topology(num_nodes=2, devices_per_node=1),
        batch_size_per_device=BATCH_SIZE,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        constraints=Constraints(sharding_types=BY_COLUMNS),
    )
    request = request.with_dense(dense_profile(_job(), TABLES), where="dense part")
    wanted = {each.text: request.model_copy(update={"wire": None if each.is_exact else each}) for each in PAIRS}
    forward, backward = ({getattr(each, way): None for each in PAIRS} for way in ("forward", "backward"))
    choices = CommunicationChoices(forward=tuple(forward), backward=tuple(backward))
    wanted["Auto"] = request.model_copy(update={"communication": choices})
    return {name: search(each, bundle=bundle) for name, each in wanted.items()}


def _job() -> DLRMTrainingJob:
    """Return the job of what the processes train, whose dense part is counted."""
    tables = [
        {"name": each.name, "numEmbeddings": each.num_embeddings, "embeddingDim": each.embedding_dim}
        for each in TABLES.tables
    ]
    model = {"embeddingTables": tables, "batchSizePerDevice": BATCH_SIZE, "numDenseFeatures": NUM_DENSE}
    model |= {"denseArchLayerSizes": LAYERS, "overArchLayerSizes": LAYERS}
    training = {"denseOptimizer": "SGD"}
    spec = {"model": model, "training": training}
    raw = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "slow-link"}, "spec": spec}
    return validated(DLRMTrainingJob, raw, where="slow link")


def train(folder: Path) -> None:
    """Train under the plans in turn; rank 0 writes what it measured, by plan and step."""
    keep_freed_memory()
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = batches(BATCH_SIZE, TABLES)
    files = {file.name.removesuffix(".plan.json"): file for file in sorted(folder.glob("*.plan.json"))}
    trainings = {name: ShardedTraining(Plan.read(file), TABLES) for name, file in files.items() if name != "Auto"}
    times: dict[str, list[dict[str, float]]] = {each.text: [] for each in PAIRS}
    for _ in range(ROUNDS):
        for name, training in trainings.items():
            for step in range(STEPS):
                dist.barrier()
                clock, processor, sent = time.perf_counter(), time.process_time(), _sent_bytes()
                training.step(data[step % len(data)])
                found = {
                    "clock_ms": 1000 * (time.perf_counter() - clock),
                    "processor_ms": 1000 * (time.process_time() - processor),
                    "bytes": float(_sent_bytes() - sent),
                }
                if step >= WARM_UP_STEPS:
                    times[name].append(found)
    if rank == 0:
        (folder / TIMES_FILE).write_text(json.dumps(times))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort an orderly end of the interpreter


def _sent_bytes() -> int:
    """Return the bytes that this node has sent over the cable."""
    return int(Path(f"/sys/class/net/{CABLE}/statistics/tx_bytes").read_text())


def report(
    profile: Path, plans: Mapping[str, Plan], times: Mapping[str, Sequence[Mapping[str, float]]], *, start_load: float
) -> list[str]:
    """Return the lines of the result."""
    exact = _quartiles([each["clock_ms"] for each in times[EXACT.text]])
    exact_bytes = _quartiles([each["bytes"] for each in times[EXACT.text]])[1]
    chosen = plans["Auto"].communication
    assert chosen is not None
    link = Hardware.read(profile / "hardware.json").inter_node
    assert link is not None
    lines = [
        "# Steps over a link of 1 Gb/s, exact and in narrow types",
        "",
        f"Machine: {cpu_model()}; load average before the training {start_load:.1f}, then {os.getloadavg()[0]:.1f}.",
        *str(__doc__).splitlines()[4:],
        "",
        (
            f"{len(TABLES.tables)} tables of {COLUMNS} columns, one lookup each, {BATCH_SIZE:,} samples per process, "
            f"{ROUNDS * (STEPS - WARM_UP_STEPS)} steps under each plan. The profile found a link of "
            f"{8 * link.bandwidth_bytes_per_second / 1e9:.3g} Gb/s. Times are of rank 0, by the clock, from a barrier "
            "on: the first quartile, and the median in parentheses, since other work of the machine can only add to a "
            "step. Processor time is the median, codecs included. Predicted is the whole step of the plan, and the "
            "exchange, codecs included, of its embedding part."
        ),
        "",
        (
            "| types | predicted step ms | of it exchange | measured step ms | predicted / measured | less than exact, "
            "predicted | measured | bytes sent | processor ms |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    predicted = {name: plan.step.total_ms for name, plan in plans.items() if plan.step is not None}
    for name, steps in times.items():
        low, middle, _ = _quartiles([each["clock_ms"] for each in steps])
        sent = _quartiles([each["bytes"] for each in steps])[1]
        processor = _quartiles([each["processor_ms"] for each in steps])[1]
        first = plans[name].predicted.devices[0]
        exchange = first.forward_communication_ms + first.backward_communication_ms
        lines.append(
            f"| {name} | {predicted[name]:.1f} | {exchange:.1f} | {low:.1f} ({middle:.1f}) | "
            f"{predicted[name] / low:.2f} | {PERCENT * (1 - predicted[name] / predicted[EXACT.text]):.0f} % | "
            f"{PERCENT * (1 - low / exact[0]):.0f} % | {sent / 1e6:.2f} MB ({exact_bytes / sent:.1f} x fewer) | "
            f"{processor:.1f} |"
        )
    lines += [
        "",
        f"Auto, permitted all of these: {chosen.chosen.text}{f'; {chosen.reason}' if chosen.reason else ''}.",
    ]
    return lines


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = quantiles(values, n=4)
    return first, second, third


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - our own words


if __name__ == "__main__":
    main()

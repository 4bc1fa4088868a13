"""One embedding server for two trainers: by torch.distributed.rpc, and as NeuroShard has it, on the same lookups.

    python -m benchmarks.rpc_server

Both ways run three processes of this machine with the same tables, rows, and learning rate, forward, backward, and
update with SGD, without a dense part. By RPC each trainer asks the server for its pooled embeddings, distributed
autograd sends their gradients back, and a distributed optimizer updates, as PyTorch's tutorial on parameter servers
does it; the trainers do not wait for each other. NeuroShard's three processes are ranks of one group, and a step is
that of the whole batch. Compared are bytes on the loopback device, processor time of all processes, and lines of the
user's code.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Pipeline, PlanRequest
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_dlrm.devices import build_topology, find_bundle
from neuroshard_dlrm.options import RequestOptions
from neuroshard_planner.pipeline import plan as search
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.dlrm import bag_collection
from neuroshard_trainer.servers.model import sharded_far
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import CPU, torchrun

NEAR = Table(name="near", num_embeddings=1000, embedding_dim=8)
FAR = tuple(
    Table(name=f"far{index}", num_embeddings=rows, embedding_dim=columns, pooling_factor=float(lookups))
    for index, (rows, columns, lookups) in enumerate(((500_000, 64, 1), (400_000, 32, 1), (200_000, 128, 2)))
)
TRAINERS, PROCESSES = 2, 3
SERVER = "server"
BATCH_SIZE, NUM_BATCHES = 2048, 8
STEPS, WARM_UP_STEPS, ROUNDS = 60, 10, 3
LEARNING_RATE, FIRST_WEIGHT = 0.01, 0.5
FOUND_FILE = "found.json"
JOB_LINES = """
experimental:
  pipeline: None
  embeddingServers:
    resources: {limits: {memory: 4Gi}}
    tables: [far0, far1, far2]
"""
WAYS = ("torch.distributed.rpc", "NeuroShard")


class TableServer(nn.Module):
    """The tables, in the process of the server."""

    def __init__(self, sizes: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(*size, mode="sum", sparse=True) for size in sizes)
        for parameter in self.parameters():
            nn.init.constant_(parameter, FIRST_WEIGHT)

    def forward(self, values: list[torch.Tensor], offsets: list[torch.Tensor]) -> torch.Tensor:
        """Return pooled embeddings of the samples, tables next to each other."""
        return torch.cat([bag(*each) for bag, *each in zip(self.bags, values, offsets, strict=True)], dim=1)

    def references(self) -> list[rpc.RRef[nn.Parameter]]:
        """Return references to the tables, for the optimizer of a trainer."""
        return [rpc.RRef(parameter) for parameter in self.parameters()]

    def total(self) -> float:
        """Return the sum of all weights."""
        return sum(float(parameter.detach().double().sum()) for parameter in self.parameters())


def rpc_step(server: "rpc.RRef[TableServer]", optimizer: DistributedOptimizer, lookups: KeyedJaggedTensor) -> None:
    """Train a step of one trainer."""
    parts = [lookups[name] for name in lookups.keys()]  # noqa: SIM118 - not a mapping
    with dist_autograd.context() as context:
        pooled = server.rpc_sync().forward([each.values() for each in parts], [each.offsets()[:-1] for each in parts])
        dist_autograd.backward(context, [(pooled * torch.ones_like(pooled)).sum()])  # type: ignore[attr-defined] # of a compiled module
        optimizer.step(context)  # type: ignore[no-untyped-call]


def main() -> None:
    """Run both ways in turns, and write the result; or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way is not None:
        run_way(options.way, options.folder)
        return
    load = os.getloadavg()[0]
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, runs in found.items():
            with tempfile.TemporaryDirectory() as scratch:
                command = torchrun(Path(__file__), "--way", way, "--folder", scratch, count=PROCESSES)
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                subprocess.run([sys.executable, *command], check=True, env=environment)  # noqa: S603 - this script
                runs.append(json.loads(Path(scratch, FOUND_FILE).read_text(encoding="utf-8")))
    print(write_result("rpc-server", report(found, load), hardware=hardware_slug(), packages=("torch", "torchrec")))


def run_way(way: str, folder: Path) -> None:
    """Train in one way; rank 0 writes what the processes took."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    taken = by_rpc() if way == WAYS[0] else as_ranks()
    everyone: list[dict[str, float]] = [{} for _ in range(PROCESSES)]
    dist.all_gather_object(everyone, taken)
    if dist.get_rank() == 0:
        found = {
            "processor_ms": sum(each["processor_ms"] for each in everyone),
            "loopback_bytes": everyone[0]["loopback_bytes"],
            "change": everyone[-1]["change"],
        }
        (folder / FOUND_FILE).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's threads abort an orderly end of the interpreter


def by_rpc() -> dict[str, float]:
    """Train by RPC; return the time, the bytes, and the change of this process."""
    rank = dist.get_rank()
    name = f"trainer{rank}" if rank < TRAINERS else SERVER
    if rank == TRAINERS:
        the_server()  # before the trainers ask for it, both at once
    # As between machines: by default processes of one machine share memory.
    options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])
    rpc.init_rpc(name, rank=rank, world_size=PROCESSES, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    step: Callable[[KeyedJaggedTensor], None] = _nothing
    if rank < TRAINERS:
        server = rpc.remote(SERVER, the_server)
        tables = server.rpc_sync().references()
        optimizer = DistributedOptimizer(torch.optim.SGD, tables, lr=LEARNING_RATE)  # type: ignore[no-untyped-call]

        def step(lookups: KeyedJaggedTensor) -> None:
            rpc_step(server, optimizer, lookups)

    found = _measured(step)
    change = the_server().total() - _first_total() if rank == TRAINERS else 0.0
    rpc.shutdown()
    return {**found, "change": change}


@cache
def the_server() -> TableServer:
    """Return the server's tables, which are made by the first call in its process."""
    return TableServer([(table.num_embeddings, table.embedding_dim) for table in FAR])


def as_ranks() -> dict[str, float]:
    """Train as a rank; return the time, the bytes, and the change of this process."""
    plan = _plan()
    sharder = embedding_sharder(Optimizer.SGD, learning_rate=LEARNING_RATE, device=CPU)
    far = sharded_far(bag_collection(FAR), plan, sharder)
    shards = [shard.tensor for each in far.state_dict().values() for shard in each.local_shards()]
    for weights in shards:
        weights.fill_(FIRST_WEIGHT)

    def step(lookups: KeyedJaggedTensor) -> None:
        pooled = far(lookups).values()
        pooled.backward(torch.full_like(pooled, PROCESSES))  # TorchRec takes the mean over the ranks

    found = _measured(step)
    total = sum(float(shard.double().sum()) for shard in shards)
    return {**found, "change": total - _first_total() if dist.get_rank() == TRAINERS else 0.0}


def _measured(step: Callable[[KeyedJaggedTensor], None]) -> dict[str, float]:
    """Return processor milliseconds and loopback bytes of a step in this process, without the first steps."""
    samples = BATCH_SIZE if dist.get_rank() < TRAINERS else 0
    data = [_lookups(samples, seed=NUM_BATCHES * dist.get_rank() + number) for number in range(NUM_BATCHES)]
    processor_s = num_bytes = 0.0
    for number in range(STEPS):
        if number == WARM_UP_STEPS:
            dist.barrier()
            processor_s, num_bytes = time.process_time(), _loopback_bytes()
        step(data[number % NUM_BATCHES])
    dist.barrier()  # a server by RPC waits here, and answers in other threads
    count = STEPS - WARM_UP_STEPS
    taken_ms = 1e3 * (time.process_time() - processor_s) / count
    return {"processor_ms": taken_ms, "loopback_bytes": (_loopback_bytes() - num_bytes) / count}


def _nothing(_: KeyedJaggedTensor) -> None:
    """Train nothing: the process serves others."""


def _lookups(samples: int, *, seed: int) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    counts = [int(samples * table.pooling_factor) for table in FAR]
    values = [
        torch.randint(table.num_embeddings, (count,), generator=generator)
        for table, count in zip(FAR, counts, strict=True)
    ]
    lengths = [torch.full((samples,), int(table.pooling_factor), dtype=torch.int32) for table in FAR]
    return KeyedJaggedTensor(
        keys=[table.name for table in FAR], values=torch.cat(values), lengths=torch.cat(lengths), stride=samples
    )


def _loopback_bytes() -> float:
    """Return the bytes that the loopback device received since the machine started."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return next(float(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def _first_total() -> float:
    return FIRST_WEIGHT * sum(table.num_embeddings * table.embedding_dim for table in FAR)


def _plan() -> Plan:
    """Return the plan of two devices and a server; what a device is decides nothing of the server's tables."""
    devices = RequestOptions(tables="far", devices=TRAINERS, device_type="h100-80gb")
    pool = ServerPool(count=1, memory_bytes=8 * 2**30, tables=tuple(table.name for table in FAR))
    request = PlanRequest(
        tables=TableSet(name="far", tables=(NEAR, *FAR)),
        topology=build_topology(devices),
        batch_size_per_device=BATCH_SIZE,
        optimizer=Optimizer.SGD,
        pipeline=Pipeline.NONE,
        servers=pool,
    )
    return search(request, bundle=find_bundle(None, request.topology.device))


def code_lines(text: str) -> int:
    """Return the lines of a text that are not empty, and no docstrings of one line."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith(('"""', "#")) for line in lines)


def report(found: dict[str, list[dict[str, float]]], load: float) -> list[str]:
    """Return the lines of the result."""
    of_user = {
        WAYS[0]: code_lines(inspect.getsource(TableServer)) + code_lines(inspect.getsource(rpc_step)),
        WAYS[1]: code_lines(JOB_LINES),
    }
    lookups = sum(table.pooling_factor for table in FAR) * BATCH_SIZE * TRAINERS
    rows = []
    for way, runs in found.items():
        times = sorted(run["processor_ms"] for run in runs)
        sent = median(run["loopback_bytes"] for run in runs)
        spread = f"{median(times):.1f} ({times[0]:.1f} to {times[-1]:.1f})"
        rows.append(f"| {way} | {sent / 1e6:.2f} | {spread} | {of_user[way]} | {runs[0]['change']:,.1f} |")
    return [
        "# An embedding server by torch.distributed.rpc and as NeuroShard has it",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, load {load:.1f} to {os.getloadavg()[0]:.1f}.",
        "",
        f"{len(FAR)} tables of {sum(table.num_embeddings for table in FAR):,} rows on one server, {TRAINERS} trainers",
        f"with {BATCH_SIZE:,} samples each, {lookups:,.0f} lookups a step, SGD; {STEPS - WARM_UP_STEPS} steps of each",
        f"of {ROUNDS} runs in turns, medians (least to most). Bytes are those of the loopback device, processor time",
        "is that of all three processes. Lines: what a user writes of the tables, without starting processes, which",
        "both ways need; NeuroShard's are those of the job. The change of all weights shows that both train the same.",
        "",
        "| way | MB a step | processor ms a step | lines | change of all weights |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "By RPC a step is each trainer's own: the trainers update without waiting for each other, and a row's updates",
        "come in any order. NeuroShard's step is that of the global batch, and its tables have sharding, fused",
        "updates, and checkpoints. PyTorch RPC (Damania et al., MLSys 2023) publishes up to two orders of magnitude",
        "over gRPC, and a tenth of its code; neither is compared here.",
    ]


if __name__ == "__main__":
    main()

"""How long a training takes to train on after kill -9 of a rank: two real ranks, their launcher, and a second start.

python -m benchmarks.recovery_time
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.documents.topology import Link, Topology
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.pipeline import plan as search

from benchmarks.plan_times import spread
from benchmarks.process_family import kill_family
from benchmarks.results_file import cpu_model, hardware_slug, write_result

WORLD_SIZE = 2
REPEATS = 6
CHECKPOINT_EVERY_STEPS = 50
KILLED_AFTER_STEP = 120
TABLES = TableSet(
    name="recovery-time",
    tables=tuple(
        Table(name=f"t{index}", num_embeddings=100_000, embedding_dim=64, pooling_factor=2.0) for index in range(16)
    ),
)
PARTS = {
    "survivor_s": "the survivor has ended, with code 7",
    "launcher_s": "the launcher has ended",
    "met_s": "the ranks of the second start have met and the sharding is proven",
    "resumed_s": "they have read the checkpoint",
    "trained_s": "they have taken a step",
}

HEAD = """# Recovery from kill -9 of a rank

Machine: {machine}, two cores; load average at the end: {load:.1f}, since other work ran on the machine at the same
time, and most of the second start is the import of torch and TorchRec, which that slows down. Two ranks over gloo,
one thread each, under `python -m neuroshard_trainer.launch`; 16 tables of 100,000 rows and 64 columns (410 MB) with
row-wise Adagrad, on local disk, a checkpoint every {every} steps. Rank 0 and rank 1 are killed in turn after step
{step}; the same command is started again as soon as the launcher has ended, as a Kubernetes Job with a running
container does; what a cluster needs for new pods is not part of it. Seconds after the kill, median and quartiles of
{repeats} kills."""


def main() -> None:
    """Measure and write the result."""
    found = []
    for repeat in range(REPEATS):
        with tempfile.TemporaryDirectory() as scratch:
            found.append(recovery(Path(scratch), killed_rank=repeat % WORLD_SIZE))
        sys.stderr.write(f"{json.dumps(found[-1])}\n")
    print(write_result("recovery-time", report(found), hardware=hardware_slug()))


def recovery(folder: Path, *, killed_rank: int) -> dict[str, float]:
    """Return the seconds from the kill of a rank to each part of the recovery, and the steps that it costs."""
    command = trainer_command(folder)
    with started(command, folder / "first.log") as first:
        wait_for(folder / "first.log", rf"step {KILLED_AFTER_STEP} of")
        ranks = sorted(psutil.Process(first.pid).children(), key=lambda child: child.environ()["RANK"])
        killed_at = time.monotonic()
        ranks[killed_rank].kill()
        survivor_s = ended(ranks[1 - killed_rank], killed_at)
        code = first.wait()
        launcher_s = time.monotonic() - killed_at
    assert code == 128 + signal.SIGKILL, code
    assert f"error: rank {1 - killed_rank}: after step" in (folder / "first.log").read_text()
    times = {"survivor_s": survivor_s, "launcher_s": launcher_s}
    log = folder / "second.log"
    with started(command, log) as second:
        for part, line in (
            ("met_s", "the ranks hold the shards"),
            ("resumed_s", r"going on from step (\d+)"),
            ("trained_s", r"step \d+ of \d+: loss"),
        ):
            wait_for(log, line)
            times[part] = time.monotonic() - killed_at
        second.send_signal(signal.SIGTERM)
        assert second.wait() == ExitCode.STOPPED
    resumed = re.search(r"going on from step (\d+)", log.read_text())
    done = re.findall(r"step (\d+) of", (folder / "first.log").read_text())
    assert resumed is not None
    return {**times, "lost_steps": max(map(int, done)) - int(resumed[1])}


def trainer_command(folder: Path) -> list[str]:
    """Write job and plan, and return the command that trains."""
    job = {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": "DLRMTrainingJob",
        "metadata": {"name": "recovery-time"},
        "spec": {
            "model": {
                "embeddingTables": [
                    {
                        "name": table.name,
                        "numEmbeddings": table.num_embeddings,
                        "embeddingDim": table.embedding_dim,
                        "poolingFactor": str(table.pooling_factor),
                    }
                    for table in TABLES.tables
                ],
                "batchSizePerDevice": 128,
                "numDenseFeatures": 13,
                "denseArchLayerSizes": [64],
                "overArchLayerSizes": [64],
            },
            "trainer": {"numProcPerNode": WORLD_SIZE},
            "data": {"format": "Synthetic", "numSamples": 10_000_000},
            "experimental": {"data": {"readerProcesses": 0}},
            "training": {"logEverySteps": 1, "evalEverySteps": 10**6},
            "checkpoint": {"everySteps": CHECKPOINT_EVERY_STEPS},
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "plan.json").write_text(made_plan().to_json())
    places = ["--plan", str(folder / "plan.json"), "--run-dir", str(folder / "run")]
    launch = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", str(WORLD_SIZE)]
    return [*launch, "-m", "neuroshard_trainer", str(folder / "job.yaml"), *places]


def made_plan() -> Plan:
    """Return a plan for the tables on two devices."""
    device = bundled_bundle("h100-80gb").manifest.device
    link = Link(bandwidth_bytes_per_second=1e11, latency_seconds=1e-5)
    topology = Topology(devices_per_node=WORLD_SIZE, device=device, intra_node=link, inter_node=link)
    return search(
        PlanRequest(tables=TABLES, topology=topology, batch_size_per_device=128), bundle=bundled_bundle("h100-80gb")
    )


@contextmanager
def started(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start processes that write to a file; none of them outlives the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)  # noqa: S603 - our own command
    try:
        yield process
    finally:
        kill_family(process)


def wait_for(log: Path, line: str) -> None:
    """Wait until a line is in the log."""
    poll(lambda: re.search(line, log.read_text()) is not None, what=f"{line!r} in {log}")


def ended(process: psutil.Process, since: float) -> float:
    """Return the seconds until a process of another parent has ended."""

    def is_over() -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    poll(is_over, what=f"the end of process {process.pid}")
    return time.monotonic() - since


def poll(holds: Callable[[], bool], *, what: str) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + 300
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.05)


def report(found: list[dict[str, float]]) -> list[str]:
    """Return the lines of the result."""
    head = HEAD.format(
        machine=cpu_model(),
        load=os.getloadavg()[0],
        every=CHECKPOINT_EVERY_STEPS,
        step=KILLED_AFTER_STEP,
        repeats=REPEATS,
    )
    lost = spread([each["lost_steps"] for each in found])
    return [
        *head.splitlines(),
        "",
        "| until | seconds after the kill |",
        "|---|---|",
        *(f"| {meaning} | {spread([each[part] for each in found])} |" for part, meaning in PARTS.items()),
        "",
        f"Steps that are trained again: {lost}, of at most {CHECKPOINT_EVERY_STEPS} between checkpoints.",
    ]


if __name__ == "__main__":
    main()

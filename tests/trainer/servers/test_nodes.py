"""Embedding servers on a node of their own: launchers as the operator starts them, with the real trainer."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.stage_commands import NODE_RANK_VARIABLE, torchrun_environment
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cluster.ports import quiet_port
from neuroshard_cluster.waiting import eventually
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.sharding.live_sharding import LiveSharding
from support.trainer.served_plans import MODEL, SPEC, planned
from support.trainer.trainer_builders import job_data, write_job, write_plan

from benchmarks.process_family import kill_family

pytestmark = [pytest.mark.processes, pytest.mark.slow]

WITHIN_S = 300.0
"""Ends a test that hangs."""
SERVERS = {"resources": {"limits": {"memory": "4Gi"}}, "tables": ["user"]}


class Nodes:
    """Nodes of trainers, of whom there are two, and after them a node of one server, on this machine."""

    def __init__(self, folder: Path, *, of_trainers: int = 1, **spec: Any) -> None:
        experimental = {**SPEC["experimental"], "embeddingServers": SERVERS}
        experimental["rendezvous"] = {"port": quiet_port(), "timeoutSeconds": 120}
        trainer = {"numNodes": of_trainers, "numProcPerNode": 2 // of_trainers}
        spec = {**SPEC, "model": MODEL, **spec, "experimental": experimental, "trainer": trainer}
        job, plan = write_job(folder, job_data(**spec)), planned(1, Optimizer.SGD, num_nodes=of_trainers)
        self.folder = folder
        self.run_dir = folder / "run"
        self._arguments = [str(job), "--plan", str(write_plan(folder, plan))]
        self._job = read_job(job)
        self._of_trainers = of_trainers
        self.start_again()

    def start_again(self) -> None:
        """Start all nodes, as another attempt does."""
        self.launchers = [self._start(node) for node in range(self._of_trainers + 1)]

    def _start(self, node: int) -> "subprocess.Popen[bytes]":
        of_servers = node == self._of_trainers
        settings = torchrun_environment(self._job, host="localhost", run_id="job-0", of_servers=of_servers)
        words = ["-m", "neuroshard_trainer.launch", "-m", "neuroshard_trainer", *self._arguments]
        index = "0" if of_servers else str(node)  # in its Kubernetes Job
        with self._log(node).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *words, "--run-dir", self.run_dir],
                env={**os.environ, **settings, NODE_RANK_VARIABLE: index, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _log(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def log(self) -> str:
        """Return the output of the first node."""
        return self._log(0).read_text()

    def codes(self) -> tuple[int, ...]:
        """Return the exit codes of all nodes, once they have ended."""
        return tuple(each.wait(WITHIN_S) for each in self.launchers)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """What starts nodes of which none outlives the test."""
    started: list[Nodes] = []

    def of(**spec: Any) -> Nodes:
        started.append(Nodes(tmp_path, **spec))
        return started[-1]

    yield of
    for launcher in (launcher for each in started for launcher in each.launchers):
        kill_family(launcher)


@pytest.mark.parametrize("of_trainers", [1, 2])
def test_a_node_of_servers_holds_tables_for_the_trainers_of_other_nodes(
    start: Callable[..., Nodes], of_trainers: int
) -> None:
    """Its index among the servers is 0, and its rank comes after those of all trainers."""
    nodes = start(of_trainers=of_trainers, training={"maxSteps": 4})

    assert set(nodes.codes()) == {ExitCode.OK}, nodes.log()
    live = LiveSharding.read(nodes.run_dir / "live-sharding.json")
    assert {shard.device for shard in live.tables["user"]} == {2}
    assert {shard.device for shard in live.tables["item"]} == {0, 1}


MOMENTS = [
    "a server",
    pytest.param("a trainer", marks=pytest.mark.long),
    pytest.param("a save", marks=pytest.mark.long),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_process_ends_all_nodes_and_training_resumes(start: Callable[..., Nodes], moment: str) -> None:
    """A server, also one that saves, or a trainer: those that lose it end with 7, and name a server."""
    every = 1 if moment == "a save" else 200
    training = {"maxSteps": 10_000_000, "logEverySteps": 1}
    nodes = start(training=training, checkpoint={"everySteps": every})
    checkpoints = nodes.run_dir / "checkpoints"
    eventually("there is a checkpoint", lambda: any(checkpoints.glob("step-*")), within_s=WITHIN_S)
    if moment == "a save":
        eventually("one is written", lambda: any(checkpoints.glob(".step-*.part/*")), within_s=WITHIN_S)
    launcher = nodes.launchers[0 if moment == "a trainer" else -1]
    process = psutil.Process(launcher.pid).children()[0]
    process.send_signal(signal.SIGKILL)
    codes, killed = nodes.codes(), 128 + signal.SIGKILL
    log = nodes.log()
    nodes.start_again()
    eventually("it resumes", lambda: "going on from step" in nodes.log(), within_s=WITHIN_S)

    is_server = moment != "a trainer"
    assert codes == ((ExitCode.PEER_LOST, killed) if is_server else (killed, ExitCode.PEER_LOST))
    assert ("rank 2, embedding server 0 on" in log) == is_server

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

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]

WITHIN_S = 300.0
"""Ends a test that hangs."""
SERVERS = {"resources": {"limits": {"memory": "4Gi"}}, "tables": ["user"]}


class TwoNodes:
    """A node of two trainers and a node of one server, on this machine."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        experimental = {**SPEC["experimental"], "embeddingServers": SERVERS}
        experimental["rendezvous"] = {"port": quiet_port(), "timeoutSeconds": 120}
        spec = {**SPEC, "model": MODEL, **spec, "experimental": experimental}
        job = write_job(folder, job_data(world_size=2, **spec, trainer={"numProcPerNode": 2}))
        self.folder = folder
        self.run_dir = folder / "run"
        self._arguments = [str(job), "--plan", str(write_plan(folder, planned(1, Optimizer.SGD)))]
        self._job = read_job(job)
        self.start_again()

    def start_again(self) -> None:
        """Start both nodes, as another attempt does."""
        self.trainers = self._start(of_servers=False)
        self.server = self._start(of_servers=True)

    def _start(self, *, of_servers: bool) -> "subprocess.Popen[bytes]":
        settings = torchrun_environment(self._job, host="localhost", run_id="job-0", of_servers=of_servers)
        words = ["-m", "neuroshard_trainer.launch", "-m", "neuroshard_trainer", *self._arguments]
        with self._log(of_servers=of_servers).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *words, "--run-dir", self.run_dir],
                env={**os.environ, **settings, NODE_RANK_VARIABLE: "0", "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _log(self, *, of_servers: bool) -> Path:
        return self.folder / ("server.log" if of_servers else "trainers.log")

    def log(self, *, of_servers: bool) -> str:
        """Return the output of a node."""
        return self._log(of_servers=of_servers).read_text()

    def codes(self) -> tuple[int, int]:
        """Return the exit codes of both nodes, once they have ended."""
        return self.trainers.wait(WITHIN_S), self.server.wait(WITHIN_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., TwoNodes]]:
    """What starts nodes of which none outlives the test."""
    started: list[TwoNodes] = []

    def of(**spec: Any) -> TwoNodes:
        started.append(TwoNodes(tmp_path, **spec))
        return started[-1]

    yield of
    for each in started:
        kill_family(each.trainers)
        kill_family(each.server)


def test_a_node_of_servers_holds_tables_for_the_trainers_of_another_node(start: Callable[..., TwoNodes]) -> None:
    """Its index among the servers is 0, and its rank comes after the trainers'."""
    nodes = start(training={"maxSteps": 4})

    assert nodes.codes() == (ExitCode.OK, ExitCode.OK), nodes.log(of_servers=False)
    live = LiveSharding.read(nodes.run_dir / "live-sharding.json")
    assert {shard.device for shard in live.tables["user"]} == {2}
    assert {shard.device for shard in live.tables["item"]} == {0, 1}


MOMENTS = [
    "a server",
    pytest.param("a trainer", marks=pytest.mark.long),
    pytest.param("a save", marks=pytest.mark.long),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_process_ends_all_nodes_and_training_resumes(start: Callable[..., TwoNodes], moment: str) -> None:
    """A server, also one that saves, or a trainer: those that lose it end with 7, and name a server."""
    every = 1 if moment == "a save" else 200
    training = {"maxSteps": 10_000_000, "logEverySteps": 1}
    nodes = start(training=training, checkpoint={"everySteps": every})
    checkpoints = nodes.run_dir / "checkpoints"
    eventually("there is a checkpoint", lambda: any(checkpoints.glob("step-*")), within_s=WITHIN_S)
    if moment == "a save":
        eventually("one is written", lambda: any(checkpoints.glob(".step-*.part/*")), within_s=WITHIN_S)
    launcher = nodes.trainers if moment == "a trainer" else nodes.server
    process = psutil.Process(launcher.pid).children()[0]
    process.send_signal(signal.SIGKILL)
    codes, killed = nodes.codes(), 128 + signal.SIGKILL
    log = nodes.log(of_servers=False)
    nodes.start_again()
    eventually("it resumes", lambda: "going on from step" in nodes.log(of_servers=False), within_s=WITHIN_S)

    is_server = moment != "a trainer"
    assert codes == ((ExitCode.PEER_LOST, killed) if is_server else (killed, ExitCode.PEER_LOST))
    assert ("rank 2, a process of an embedding server on" in log) == is_server

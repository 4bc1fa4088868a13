"""Nodes whose launchers start at different times, never start, or die: exit codes that a restart policy can use."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from neuroshard_api.job.stage_commands import NODE_RANK_VARIABLE, torchrun_environment
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cluster.ports import quiet_port
from neuroshard_cluster.waiting import eventually
from neuroshard_trainer.launch import main as launch
from support import builders

from benchmarks.process_family import kill_family

pytestmark = [pytest.mark.processes, pytest.mark.slow]

TRAINER = """
import os
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from neuroshard_api.process.errors import PeerLostError
from neuroshard_trainer.ranks.process import joined, lost_peers

folder = Path(sys.argv[1])
try:
    process = joined(torch.device("cpu"), timeout_seconds=60)
    with lost_peers(lambda: "while training", trains=lambda: True):
        while True:
            dist.all_reduce(torch.ones(1))
            (folder / f"rank-{process.rank}").write_text(sys.argv[0])
except PeerLostError:
    os._exit(7)
"""
"""Ends as the trainer does, at once: gloo's threads abort a process that tears down its modules among dead peers."""
WITHIN_S = 300.0
"""Ends a test that hangs."""
WAITS = "Rendezvous'ing worker group"
"""What torchrun logs before a launcher begins to wait for the others."""


def environment(rank: int, *, timeout_s: int, port: int | None = None) -> Mapping[str, str]:
    """Return the settings that the launcher of one of two nodes gets in its pod."""
    job = builders.job(
        trainer={"numNodes": 2, "numProcPerNode": 1},
        experimental={"rendezvous": {"port": port or quiet_port(), "timeoutSeconds": timeout_s}},
    )
    return {**torchrun_environment(job, host="localhost", run_id="job-0"), NODE_RANK_VARIABLE: str(rank)}


class Nodes:
    """Launchers of one job with two nodes, on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._script = folder / "trainer.py"
        self._script.write_text(TRAINER)
        self._started: list[subprocess.Popen[bytes]] = []
        self._port = quiet_port()

    def start(self, rank: int) -> "subprocess.Popen[bytes]":
        """Start the launcher of one node, whose rank trains until it is lost or loses its peer."""
        settings = environment(rank, timeout_s=int(WITHIN_S), port=self._port)
        with self._log(rank).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "neuroshard_trainer.launch", self._script, self.folder],
                env={**os.environ, **settings, "LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    def log(self, rank: int) -> str:
        """Return the output of a node."""
        return self._log(rank).read_text()

    def trains(self, rank: int) -> Callable[[], bool]:
        """Return a question: whether a rank has finished a step."""
        return (self.folder / f"rank-{rank}").exists

    def end(self) -> None:
        """Kill all."""
        for process in self._started:
            kill_family(process)

    def _log(self, rank: int) -> Path:
        return self.folder / f"node-{rank}.log"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes of which none outlives the test."""
    two = Nodes(tmp_path)
    yield two
    two.end()


@pytest.mark.parametrize("dead", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_node_waits_for_a_late_first_node_and_loses_it_when_it_dies(nodes: Nodes, dead: int) -> None:
    """Node 1 starts alone and waits; once node 0 is there, both train, and each node's rank is its own number.

    The death of either node is a lost peer to the other, also where the dead one held the store that they met at.
    """
    second = nodes.start(1)
    eventually("node 1 waits", lambda: WAITS in nodes.log(1), within_s=WITHIN_S)
    launchers = [nodes.start(0), second]
    for rank in (0, 1):
        eventually(f"rank {rank} trains", nodes.trains(rank), within_s=WITHIN_S)
    kill_family(launchers[dead])  # at once, as the death of its node does

    assert launchers[1 - dead].wait() == ExitCode.PEER_LOST, nodes.log(1 - dead)
    assert "group_rank=0" in nodes.log(0)
    assert "group_rank=1" in nodes.log(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_that_never_comes_is_a_lost_peer(
    rank: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The node that waited did nothing wrong: another attempt may find the other one there."""
    for name, value in environment(rank, timeout_s=2).items():
        monkeypatch.setenv(name, value)

    assert launch(["--no-python", "false"]) == ExitCode.PEER_LOST
    printed = capfd.readouterr().err
    assert "error: the workers did not meet at localhost:" in printed
    assert "hint: check that all workers start within spec.experimental.rendezvous.timeoutSeconds" in printed


def test_the_launcher_ends_with_the_cause_where_a_rank_is_killed(tmp_path: Path) -> None:
    """The other one, which ends because it lost a peer, is a consequence."""
    until_lost = f'trap "exit {ExitCode.PEER_LOST:d}" TERM; while true; do sleep 0.1; done'
    (tmp_path / "rank.sh").write_text(f'if [ "$RANK" = 1 ]; then kill -9 $$; fi; {until_lost}')
    arguments = ["--standalone", "--nproc-per-node", "2", "--no-python", "bash", str(tmp_path / "rank.sh")]
    launcher = subprocess.Popen([sys.executable, "-m", "neuroshard_trainer.launch", *arguments])
    try:
        assert launcher.wait(timeout=WITHIN_S) == 128 + signal.SIGKILL
    finally:
        kill_family(launcher)


def test_a_rank_that_does_not_stop_is_killed_within_the_grace_period(tmp_path: Path) -> None:
    """The launcher waits for its processes as long as the grace period allows, and not the 30 s of its default."""
    settings = torchrun_environment(builders.job(), host="localhost", run_id="job-0", grace_seconds=2)
    stubborn = f"trap '' TERM; touch {tmp_path}/up; while true; do sleep 0.1; done"
    launcher = subprocess.Popen(
        [sys.executable, "-m", "neuroshard_trainer.launch", "--no-python", "bash", "-c", stubborn],
        env={**os.environ, **settings, "PET_RDZV_ENDPOINT": "localhost:0"},
    )
    try:
        eventually("the rank runs", (tmp_path / "up").exists, within_s=WITHIN_S)
        launcher.terminate()

        assert launcher.wait(timeout=28) == ExitCode.STOPPED  # sooner than by its default
    finally:
        kill_family(launcher)

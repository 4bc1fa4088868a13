"""The name of a lost rank, from gloo's errors and the processes of a host."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from neuroshard_api.process.errors import ANOTHER_PROCESS
from neuroshard_trainer.ranks import peers as of_peers
from neuroshard_trainer.ranks.peers import Peer, Peers
from torch._C._distributed_c10d import HashStore

HERE = str(Path("/proc/self/ns/pid").readlink())
CLOSED = "Connection closed by peer [10.0.0.{}]:35213"


def pod(rank: int, host: str, address: int, *, server: str | None = None) -> Peer:
    """Return a rank in a pod of its own processes."""
    processes = HERE if rank == 0 else f"pid:[{address}]"
    return Peer(
        rank=rank,
        server=server,
        host=host,
        address=f"10.0.0.{address}",
        pid=os.getpid(),
        processes=processes,
    )


PODS = Peers(
    ranks=(
        pod(0, "job-worker-0-0", 1),
        pod(1, "job-worker-0-1", 2),
        pod(2, "job-server-0-0", 3, server="process 0 of embedding server 0"),
        pod(3, "job-server-0-0", 3, server="process 1 of embedding server 0"),
    ),
    own=0,
)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (CLOSED.format(2), "rank 1, a trainer on job-worker-0-1,"),
        (CLOSED.format(3), "rank 2, process 0 of embedding server 0 on job-server-0-0,"),
        (CLOSED.format(9), ANOTHER_PROCESS),
        ("Timed out waiting 10000ms for recv operation to complete", ANOTHER_PROCESS),
    ],
    ids=["a trainer", "a server", "nobody's address", "no address"],
)
def test_the_address_of_a_pod_is_its_name(reason: str, name: str) -> None:
    """Of the processes of one server any one stands for it."""
    assert PODS.lost(reason) == name


def test_of_the_processes_of_one_host_the_one_that_has_ended_is_named() -> None:
    """They all have its address, and one that its parent has not asked for has ended too."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        one = pod(0, "host", 1)
        trainers = tuple(replace(one, rank=rank, pid=os.getppid()) for rank in range(2))
        servers = tuple(
            replace(one, rank=rank, server=f"embedding server {rank - 2}", pid=os.getppid()) for rank in (2, 3)
        )
        here = Peers(ranks=(*trainers, servers[0], replace(servers[1], pid=ended.pid)), own=0)

        assert here.lost(CLOSED.format(1)) == "rank 3, embedding server 1 on host,"


def test_a_rank_that_does_not_answer_the_roll_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another one has ended since, as those do that wait for it."""
    monkeypatch.setattr(of_peers, "_ROLL_CALL_S", 0.1)
    store, here = HashStore(), replace(PODS, silent=[])
    for rank in (1, 2):
        replace(PODS, own=rank, silent=[])._call(store, set())
    here.call_roll(store)

    assert here.lost(CLOSED.format(2)) == "rank 3, process 1 of embedding server 0 on job-server-0-0,"

"""Specification of the ranks that measure all-to-alls, with real processes over gloo."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from neuroshard_api.exit_codes import ExitCode
from neuroshard_costs.fitting.records import read_records
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.errors import MeasureError
from neuroshard_profiler.processes import Measurer, run_measurers

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


def test_two_nodes_measure_the_network_between_them(tmp_path: Path) -> None:
    """Each process is a node of one device, whose link inside the node stays empty."""
    out = tmp_path / "communication.jsonl"
    processes = [started(rank, out) for rank in ranks_of_a_job()]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [ExitCode.OK, ExitCode.OK], errors

    records = read_records(out)
    samples = [record.communication for record in records if record.communication is not None]
    assert len(samples) == 4
    assert {(sample.num_nodes, sample.devices_per_node, sample.intra_node) for sample in samples} == {(2, 1, None)}
    (network,) = {sample.inter_node for sample in samples}
    assert network is not None
    assert 1e6 < network.bandwidth_bytes_per_second < 1e12
    assert 0 < network.latency_seconds < 1
    assert all(min(record.device_ms) > 0 for record in records)


def test_a_rank_that_is_killed_loses_the_exchange_in_flight_only(tmp_path: Path) -> None:
    """Although it is the one that records: the profile ends with the log's last lines, and the same command resumes."""
    measurer = Measurer(
        command=[
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "neuroshard_profiler", "collect-comm", "--device", "cpu", "--budget", "1h"),
            *("--out", str(tmp_path / "communication.jsonl")),
        ],
        records=tmp_path / "communication.jsonl",
        log=tmp_path / "communication.log",
    )

    others = children()

    def kill(num_records: int) -> None:
        if num_records >= 3:
            for process in children() - others:
                with suppress(psutil.NoSuchProcess):  # it has ended, or is killed
                    if process.environ().get("RANK") == "0":
                        process.kill()

    with pytest.raises(MeasureError, match=r"(?s)a process that measures ended with 1; .*exitcode\s*: -9"):
        run_measurers([measurer], Budget(seconds=240), on_poll=kill)
    assert children() <= others
    before = read_records(measurer.records)
    more = ["--max-records", str(len(before) + 2)]

    run_measurers([replace(measurer, command=[*measurer.command, *more])], Budget(seconds=240), on_poll=lambda _: None)

    records = read_records(measurer.records)
    assert records[: len(before)] == before
    assert [record.communication.direction for record in records if record.communication] == [
        ("forward", "backward")[number % 2] for number in range(len(before) + 2)
    ]


def children() -> set[psutil.Process]:
    """Return the processes below this one; those that other tests keep for a whole run are among them."""
    return set(psutil.Process().children(recursive=True))


def ranks_of_a_job() -> list[dict[str, str]]:
    """Return the environment that torchrun gives to each of two nodes' processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return [{**shared, "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} for rank in range(2)]


def started(rank: dict[str, str], out: Path) -> subprocess.Popen[str]:
    """Start one node's process."""
    command = [sys.executable, "-m", "neuroshard_profiler", "collect-comm", "--out", str(out), "--device", "cpu"]
    return subprocess.Popen(
        [*command, "--budget", "60s", "--max-records", "4"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **rank},
        stderr=subprocess.PIPE,
        text=True,
    )

"""Specification of all-to-alls between nodes, with real processes over gloo that each are a node of one device."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from neuroshard_api.exit_codes import ExitCode
from neuroshard_costs.fitting.records import read_records

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


def test_two_nodes_measure_the_network_between_them(tmp_path: Path) -> None:
    """The link inside a node, which has one device, stays empty."""
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

"""Specification of a profile over two nodes, with real processes that exchange over gloo."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.topology import Topology
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.fitting.records import read_records
from neuroshard_profiler.__main__ import main
from support.builders import table_set

pytestmark = pytest.mark.processes

ENOUGH_RECORDS = "26"
"""For the fit of both directions; no more are measured."""


def free_endpoint() -> str:
    """Return an address of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def started(out: Path, *, node_rank: int, endpoint: str, meet_within: str = "60s") -> "subprocess.Popen[str]":
    """Start the profiler of one of two nodes with one process each, of a job of four such nodes."""
    tables = out.with_suffix(".json")
    tables.write_text(table_set().to_json(), encoding="utf-8")
    command = [sys.executable, "-m", "neuroshard_profiler", "profile", "--out", str(out), "--tables", str(tables)]
    command += ["--backend", "torch_native", "--device", "cpu", "--optimizer", "sgd", "--batch-size", "256"]
    command += ["--nodes", "4", "--devices-per-node", "1", "--procs", "1"]
    command += ["--budget", "5s", "--max-records", ENOUGH_RECORDS, "--meet", endpoint, "--meet-within", meet_within]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PET_NODE_RANK": str(node_rank)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_profile_over_two_nodes_has_the_measured_link_between_them(tmp_path: Path) -> None:
    """Node 0 writes all of it, its peer nothing; the level inside a node, which nothing passed over, is empty."""
    endpoint = free_endpoint()
    nodes = [started(tmp_path / f"node-{rank}", node_rank=rank, endpoint=endpoint) for rank in range(2)]
    errors = [node.communicate(timeout=280)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [ExitCode.OK, ExitCode.OK], errors
    out, peer = tmp_path / "node-0", tmp_path / "node-1"
    hardware = Hardware.read(out / "hardware.json")
    samples = [record.communication for record in read_records(out / "records" / "communication.jsonl")]

    assert hardware.inter_node is not None
    assert 1e6 < hardware.inter_node.bandwidth_bytes_per_second < 1e12
    assert hardware.intra_node is None
    assert {(each.num_nodes, each.devices_per_node, each.inter_node) for each in samples if each is not None} == {
        (2, 1, hardware.inter_node)
    }
    assert Topology.read(out / "topology.json").inter_node == hardware.inter_node
    manifest = load_bundle(out / "bundle").manifest
    assert manifest.source == hardware.source
    assert manifest.source.startswith("cpu:")
    assert not list(peer.glob("**/*.json*"))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("node_rank", [0, 1])
def test_a_node_whose_peer_does_not_come_ends_with_a_lost_peer(tmp_path: Path, node_rank: int) -> None:
    """Within the time that it was given, and before it measures anything."""
    node = started(tmp_path / "node", node_rank=node_rank, endpoint=free_endpoint(), meet_within="2s")
    error = node.communicate(timeout=100)[1]

    assert node.returncode == ExitCode.PEER_LOST, error
    assert "did not meet at 127.0.0.1:" in error
    assert not list((tmp_path / "node").glob("**/*.jsonl"))


@pytest.mark.parametrize(
    ("options", "node_rank", "problem"),
    [
        (("--meet", "host"), "0", "'host' is not an address; hint: write host:port of node 0"),
        (("--meet", "host:1"), "2", "PET_NODE_RANK must be 0 on the node that writes the profile and 1 on its peer"),
        (("--meet", "host:1"), None, "found None"),
        (("--meet", "host:1", "--backend", "simulated", "--device-type", "h100-80gb"), "0", "exchanges nothing"),
    ],
    ids=["no port", "a third node", "no number", "simulated"],
)
def test_a_meeting_that_cannot_be_is_refused(
    tmp_path: Path,
    options: tuple[str, ...],
    node_rank: str | None,
    problem: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is measured, with the remedy."""
    monkeypatch.delenv("PET_NODE_RANK", raising=False)
    if node_rank is not None:
        monkeypatch.setenv("PET_NODE_RANK", node_rank)

    assert main(["profile", "--out", str(tmp_path / "out"), *options]) == ExitCode.INVALID_INPUT
    assert problem in capsys.readouterr().err

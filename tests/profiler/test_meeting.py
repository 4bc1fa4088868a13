"""Specification of a profile over two nodes, with real processes that exchange over gloo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.topology import Topology
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cluster.ports import quiet_port
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.fitting.records import read_records
from neuroshard_profiler.__main__ import main
from support.builders import table_set

SIMULATED = ("--set", "spec.profiler.backend=Simulated", "--set", "spec.profiler.deviceType=h100-80gb")
ENOUGH_RECORDS = "26"
"""For the fit of both directions; no more are measured."""


def command(out: Path, *, endpoint: str, timeout: int | None = None) -> list[str]:
    """Return the arguments of one of two nodes with one process each, of a job of four such nodes."""
    tables = out.with_suffix(".json")
    tables.write_text(table_set().to_json(), encoding="utf-8")
    arguments = ["profile", str(tables), "--out", str(out), "--set", "spec.profiler.backend=TorchNative"]
    arguments += [] if timeout is None else ["--set", f"spec.experimental.profiler.timeoutSeconds={timeout}"]
    fields = ("model.embeddingOptimizer=SGD", "model.batchSizePerDevice=256", "trainer.numNodes=4")
    arguments += [word for field in fields for word in ("--set", f"spec.{field}")]
    arguments += ["--set", "spec.trainer.numProcPerNode=1"]
    return [
        *arguments,
        "--budget",
        "5s",
        "--max-records",
        ENOUGH_RECORDS,
        "--meet",
        endpoint,
    ]


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.slow
def test_a_profile_over_two_nodes_has_the_measured_link_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 0 writes all of it, its peer nothing; the level inside a node, which nothing passed over, is empty."""
    endpoint = f"127.0.0.1:{quiet_port()}"
    out, peer = tmp_path / "node-0", tmp_path / "node-1"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    node_1 = subprocess.Popen(
        [sys.executable, "-m", "neuroshard_profiler", *command(peer, endpoint=endpoint)],
        env={**os.environ, "PET_NODE_RANK": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        monkeypatch.setenv("PET_NODE_RANK", "0")
        assert main(command(out, endpoint=endpoint)) == ExitCode.OK
        error = node_1.communicate()[1]
    finally:
        node_1.kill()
    assert node_1.returncode == ExitCode.OK, error
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


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("node_rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_node_whose_peer_does_not_come_ends_with_a_lost_peer(
    tmp_path: Path, node_rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within the time that it was given, and before it measures anything."""
    monkeypatch.setenv("PET_NODE_RANK", str(node_rank))
    arguments = command(tmp_path / "node", endpoint=f"127.0.0.1:{quiet_port()}", timeout=16)

    assert main(arguments) == ExitCode.PEER_LOST
    assert "did not meet at 127.0.0.1:" in capsys.readouterr().err
    assert not list((tmp_path / "node").glob("**/*.jsonl"))


@pytest.mark.parametrize(
    ("options", "node_rank", "problem"),
    [
        (("--meet", "host"), "0", "'host' is not an address; hint: write host:port of node 0"),
        (("--meet", "host:1"), "2", "PET_NODE_RANK must be 0 on the node that writes the profile and 1 on its peer"),
        (("--meet", "host:1"), None, "found None"),
        (("--meet", "host:1", *SIMULATED), "0", "exchanges nothing"),
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
    assert problem in capsys.readouterr().err.replace("\nhint:", "; hint:")

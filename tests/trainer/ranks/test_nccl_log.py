"""NCCL's log, in the lines that libnccl prints."""

import os
from pathlib import Path

import pytest
from neuroshard_trainer.ranks.nccl_log import log_to, nccl_warning, transport

IB = (
    "node-1:41:57 [0] NCCL INFO NCCL_IB_HCA set to mlx5\n"
    "node-1:41:57 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.4<0>\n"
    "node-1:41:57 [0] NCCL INFO Using network IB\n"
)
SOCKET = "node-1:41:57 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.4<0>\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (IB, ("IB", ("mlx5_0", "mlx5_1"))),
        (SOCKET, ("Socket", ("eth0",))),
        ("NCCL INFO cudaDriverVersion 13000\n", None),
    ],
    ids=["RDMA", "sockets", "not there"],
)
def test_the_transport_is_read(log: str, expected: object) -> None:
    """By name, with its interfaces."""
    assert transport(log) == expected


def test_sockets_between_nodes_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On one node NCCL names a network, too, but does not use it."""
    file = tmp_path / "nccl.log"
    file.write_text(SOCKET)
    caplog.set_level("INFO")

    assert "see docs/guides/fast-network.md" in str(nccl_warning(file, num_nodes=2))
    assert nccl_warning(file, num_nodes=1) is None
    assert "NCCL sends between nodes over Socket (eth0)" in caplog.text
    assert nccl_warning(None, num_nodes=2) is None


def test_nccl_logs_to_a_file_unless_its_log_is_wanted_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that sets NCCL_DEBUG keeps NCCL's log where it is."""
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert log_to(tmp_path, rank=3) is None
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)

    assert log_to(tmp_path, rank=3) == tmp_path / "nccl-rank-3.log"

    assert os.environ["NCCL_DEBUG_FILE"] == str(tmp_path / "nccl-rank-3.log")

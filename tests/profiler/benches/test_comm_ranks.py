"""Specification of the ranks that measure all-to-alls, with real processes over gloo."""

import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from neuroshard_costs.fitting.records import read_records
from neuroshard_profiler.errors import MeasureError
from neuroshard_profiler.processes import Measurer, run_measurers
from support.trainer.rank_server import RankServer

pytestmark = [pytest.mark.processes, pytest.mark.torch, pytest.mark.slow]


@pytest.mark.torchrec  # of the server of the ranks
def test_two_nodes_measure_the_network_between_them(tmp_path: Path, ranks: RankServer) -> None:
    """Each process is a node of one device, whose link inside the node stays empty."""
    out = tmp_path / "communication.jsonl"
    command = ["collect-comm", "--out", str(out), "--device", "cpu", "--budget", "60s", "--max-records", "4"]
    ranks.succeed("neuroshard_profiler.__main__:main", command, folder=tmp_path, count=2, per_node=1)

    records = read_records(out)
    samples = [record.communication for record in records if record.communication is not None]
    assert len(samples) == 4
    assert {(sample.num_nodes, sample.devices_per_node, sample.intra_node) for sample in samples} == {(2, 1, None)}
    (network,) = {sample.inter_node for sample in samples}
    assert network is not None
    assert 1e6 < network.bandwidth_bytes_per_second < 1e12
    assert 0 < network.latency_seconds < 1
    assert all(min(record.device_ms) > 0 for record in records)


@pytest.mark.torchrec  # of the server of the ranks
def test_a_rank_that_is_killed_loses_the_exchange_in_flight_only(tmp_path: Path, ranks: RankServer) -> None:
    """Although it is the one that records: the profile ends with the log's last lines, and the same command resumes."""
    collect = ["collect-comm", "--device", "cpu", "--budget", "1h", "--out", str(tmp_path / "communication.jsonl")]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    measurer = Measurer(
        command=[*torchrun, "-m", "neuroshard_profiler", *collect],
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
        run_measurers([measurer], on_poll=kill)
    assert children() <= others
    before = read_records(measurer.records)
    more = ["--max-records", str(len(before) + 2)]

    ranks.succeed("neuroshard_profiler.__main__:main", [*collect, *more], folder=tmp_path, count=2)

    records = read_records(measurer.records)
    assert records[: len(before)] == before
    assert [record.communication.direction for record in records if record.communication] == [
        ("forward", "backward")[number % 2] for number in range(len(before) + 2)
    ]


def children() -> set[psutil.Process]:
    """Return the processes below this one; those that other tests keep for a whole run are among them."""
    return set(psutil.Process().children(recursive=True))

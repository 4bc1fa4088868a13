"""The model under a plan: on all ranks, or on none."""

from pathlib import Path

import pytest
from support.trainer.rank_server import RankServer

WORKER = Path(__file__).with_name("construction_worker.py")


@pytest.mark.slow
@pytest.mark.processes
def test_what_torchrec_refuses_on_one_rank_is_an_error_of_all(tmp_path: Path, ranks: RankServer) -> None:
    """None is left in the collectives that follow, and the others name the rank."""
    ranks.succeed(f"{WORKER}:main", tmp_path, folder=tmp_path, count=2)

    own, other = (tmp_path / "1.txt").read_text(), (tmp_path / "0.txt").read_text()
    assert own.startswith("TorchRec cannot build the plan's shards (")
    assert own.endswith("check the plan with `neuroshard validate`")
    assert other == f"rank 1: {own}"

"""What TorchRec keeps alive at once, against the memory ledger."""

from pathlib import Path

import pytest
from neuroshard_api.documents.request import Pipeline
from support.trainer.rank_server import RankServer

WORKER = Path(__file__).with_name("live_copies_worker.py")


@pytest.mark.processes
def test_the_ledger_counts_the_copies_that_are_alive_at_once(ranks: RankServer, tmp_path: Path) -> None:
    """Of vectors, of lookups, and of both, with and without a pipeline: within 4 % of what torch allocates."""
    found = ranks.found(WORKER, folder=tmp_path, count=2)

    assert [(each["pipeline"], each["case"]) for each in found] == [
        (kind, case) for kind in (Pipeline.NONE, Pipeline.SPARSE_DIST) for case in range(3)
    ]
    errors = {(each["pipeline"], each["case"]): each["counted"] / each["allocated"] - 1 for each in found}
    assert {key: error for key, error in errors.items() if abs(error) > 0.04} == {}

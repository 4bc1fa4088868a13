"""Causes of slow steps of real ranks, each planted in turn in one training."""

from pathlib import Path

import pytest
from neuroshard_api.documents.input_statistics import InputStatistics
from support.trainer.rank_server import RankServer

pytestmark = [pytest.mark.processes, pytest.mark.slow]
WORKER = Path(__file__).with_name("drift_worker.py")


def test_each_planted_fault_is_named_rightly(tmp_path: Path, ranks: RankServer) -> None:
    """By the last report during it, and nothing else is; the one before ended at a rest of 200 steps.

    Times are the processor's, which other programs on this machine disturb least: a rank's wait for another is not in
    them.
    """
    found = ranks.found(WORKER, folder=tmp_path, count=2)

    planted = [each for each in found if each["fault"] != "nothing"]
    assert [each["fault"] for each in planted] == ["device", "exchange", "inputs", "data", "dense"]
    assert [each["found"] for each in planted] == [each["expected"] for each in planted]
    assert InputStatistics.read(tmp_path / "input-statistics.json").changed_features == ()

"""Causes of slow steps of real ranks, each planted in turn in one training."""

import json
from pathlib import Path

import pytest
from neuroshard_api.drift_report import Cause
from neuroshard_api.input_statistics import InputStatistics
from rank_server import RankServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("drift_worker.py")


def test_each_planted_fault_is_named_rightly(tmp_path: Path, ranks: RankServer) -> None:
    """By the last report during it, and nothing else is; the one before ended at a rest of 200 steps.

    Times are the processor's, which other programs on this machine disturb least: a rank's wait for another is not in
    them.
    """
    ranks.succeed(f"{WORKER}:main", tmp_path, folder=tmp_path, count=2)

    assert json.loads((tmp_path / "found.json").read_text()) == {
        "device": [[Cause.DEVICE_SLOW, [1], []]],
        "exchange": [[Cause.COMMUNICATION_SLOW, [], []]],
        "inputs": [[Cause.INPUTS_DRIFTED, [1], ["item"]]],
        "data": [[Cause.DATA_LATE, [0, 1], []]],
        "dense": [[Cause.DENSE_SLOW, [], []]],
    }
    assert InputStatistics.read(tmp_path / "input-statistics.json").changed_features == ()

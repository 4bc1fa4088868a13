"""How a further collection of tables is measured, by real ranks."""

from pathlib import Path

import pytest
from neuroshard_costs.fitting.collections import fitted_collection
from neuroshard_costs.fitting.records import read_records
from support.trainer.rank_server import RankServer

pytestmark = [pytest.mark.processes, pytest.mark.torch, pytest.mark.torchrec, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("collection_worker.py")


def test_ranks_measure_what_a_further_collection_adds(tmp_path: Path, ranks: RankServer) -> None:
    """A stopped profile resumes; each collection exchanges, and the parts of two are those of a price."""
    ranks.succeed(f"{WORKER}:main", tmp_path, folder=tmp_path, count=2)

    records = read_records(tmp_path / "collections.jsonl")
    assert [record.collections.pooling_factor for record in records if record.collections] == [1, 10, 1, 10, 1, 10]
    measured = records[1].collection_times  # the first was recorded before
    assert measured is not None
    for parts in (measured.one, measured.two):
        assert min(parts.indices_ms, *parts.compute_ms, *parts.exchange_ms) > 0
    found = fitted_collection(records)
    assert found is not None
    assert found.indices_ms > 0

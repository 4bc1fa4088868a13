"""How a further collection of tables is measured, by real ranks."""

import json
from pathlib import Path

import pytest
from neuroshard_api.documents.records import CollectionTimes
from neuroshard_costs.fitting.collections import fitted_collection
from neuroshard_costs.fitting.records import read_records
from neuroshard_profiler.benches.collection import SPIN_CYCLES
from support.trainer.rank_server import RankServer

pytestmark = [pytest.mark.processes, pytest.mark.torch, pytest.mark.torchrec]
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


def test_on_a_gpu_all_that_needs_no_answer_of_the_device_is_queued_while_it_spins(
    tmp_path: Path, ranks: RankServer
) -> None:
    """The host waits for sizes of the indices alone; what it launches later has no gaps, as under a pipeline."""
    ranks.succeed(f"{WORKER}:queue", tmp_path, folder=tmp_path, count=2)

    found = json.loads((tmp_path / "queue.json").read_text())
    one, two = (
        [*["input_dist"] * count, f"spin {SPIN_CYCLES}", *["compute_and_output_dist"] * count] for count in (1, 2)
    )
    turns = [*two, *one, *one, *two]
    assert found["log"][: len(turns)] == turns
    assert len(found["log"]) % len(turns) == 0
    times = CollectionTimes.model_validate_json(json.dumps(found["times"]))
    assert min(times.two.indices_ms, *times.two.compute_ms, *times.two.exchange_ms) > 0

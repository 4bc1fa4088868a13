"""A whole `neuroshard run` whose inputs drift, without a cluster: it plans again by itself, restarts, and finishes."""

from pathlib import Path

import pytest
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.job.stage_commands import PROGRESS_FILE

from benchmarks.replanned_run import Scratch, job, parts

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


def test_a_run_whose_inputs_drift_finishes_under_another_plan(tmp_path: Path) -> None:
    """Nothing but job and data is given: the run's own models, report, and rule; the embedding part of a step falls."""
    scratch = Scratch(tmp_path)
    plan = scratch.planned(job("drifting"))
    hot = [table.name for table in plan.tables if {shard.device for shard in table.shards} == {0}]
    measured, drift = scratch.trained(job("drifting", hot=hot, drifts=True))
    first, second = scratch.record["history"]
    found = parts(measured)

    assert drift is not None
    assert set(drift.changes[0].tables) == set(hot)
    assert (first["reason"], second["reason"], scratch.record["replans"]) == ("PlanWritten", "InputsDrifted", 1)
    assert second["measuredGainPercent"] > 0
    assert found["replanned"] < found["after"]
    progress = TrainingProgress.read(scratch.run_dir / "train" / PROGRESS_FILE)
    assert progress.step == progress.num_steps

"""Faults of the data of a real training of two ranks: named with column and range of samples within one report."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.documents.finding import FindingKind
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.process.exit_codes import ExitCode
from support.trainer.rank_server import RankServer, output
from support.trainer.trainer_builders import TABLES, job_data, plan_of, write_job, write_plan

pytestmark = [pytest.mark.processes]
TRAINER = "neuroshard_trainer.__main__:main"
STEP, REPORT = 256, 100
"""Samples of both ranks in a step, and steps of a report."""


def columns(num_steps: int) -> dict[str, Any]:
    """Return the columns of usual samples: three dense ones, of which one lacks some values, and an id per table."""
    rng, count = np.random.default_rng(0), num_steps * STEP
    dense = rng.normal(size=(3, count))
    dense[1, rng.random(count) < 0.05] = np.nan
    ids = {table.name: rng.integers(0, table.num_embeddings, size=count).astype(object) for table in TABLES}
    return {**{f"d{number}": each for number, each in enumerate(dense)}, **ids, "label": rng.integers(0, 2, size=count)}


def arguments(folder: Path, data: dict[str, Any], **training: Any) -> list[str]:
    """Write data, job, and plan, and return the trainer's arguments; samples are trained on as they are stored."""
    table = pa.table({name: pa.array(each) for name, each in data.items()})
    pq.write_table(table, folder / "data.parquet", row_group_size=4096)
    source = {
        "format": "Parquet",
        "path": "data.parquet",
        "numSamples": None,
        "denseColumns": ["d0", "d1", "d2"],
        "missing": "Zero",
        "validationPercent": 0,
        "shuffle": False,
    }
    job = job_data(
        world_size=2,
        data=source,
        model={"batchSizePerDevice": STEP // 2},
        training={"logEverySteps": REPORT, **training},
    )
    plan = write_plan(folder, plan_of(world_size=2))
    return [str(write_job(folder, job)), "--plan", str(plan), "--run-dir", str(folder / "run")]


def test_faults_are_named_with_column_and_samples_within_one_report(tmp_path: Path, ranks: RankServer) -> None:
    """Missing ids and numbers from step 340, and from step 450 labels that are all 0; nothing else in 500 steps."""
    data, rng = columns(500), np.random.default_rng(1)
    late = np.arange(500 * STEP) >= 340 * STEP
    data["item"][late & (rng.random(len(late)) < 0.4)] = None
    data["d2"][late & (rng.random(len(late)) < 0.4)] = np.nan
    data["label"][450 * STEP :] = 0

    printed = ranks.succeed(TRAINER, arguments(tmp_path, data), folder=tmp_path, count=2)

    progress = TrainingProgress.read(tmp_path / "run" / "progress.json")
    named = {(each.kind, each.column): each for each in progress.findings or ()}
    nulls = [(FindingKind.NULLS_ROSE, "d2"), (FindingKind.NULLS_ROSE, "item")]
    labels = (FindingKind.LABELS_CONSTANT, "label")
    assert set(named) == {*nulls, labels}
    for each in nulls:
        assert (named[each].first_sample, named[each].last_sample) == (300 * STEP, 400 * STEP - 1)
    assert (named[labels].first_sample, named[labels].last_sample) == (450 * STEP, 500 * STEP - 1)
    assert all(each.text in printed for each in named.values())


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_a_value_that_ruins_the_loss_is_named_with_its_row(tmp_path: Path, ranks: RankServer, optimizer: str) -> None:
    """At the next line of the log, with the step since when; a loss that is NaN ends both ranks with it."""
    data = columns(60)
    row = 33 * STEP + STEP // 2 + 5
    data["d0"][row : row + 2] = 3e38, 2e38
    data["label"][row : row + 2] = 0, 1  # whatever its sign is, one of the logits is wrong

    ends = optimizer == "SGD"  # Adam divides by the gradient's size
    options = arguments(tmp_path, data, logEverySteps=20, denseOptimizer=optimizer)
    ended = ranks.run(TRAINER, options, folder=tmp_path, count=2, after_failure_s=60)

    assert set(ended.codes) == {ExitCode.INVALID_INPUT if ends else ExitCode.OK}
    line = next(each for each in output(tmp_path, 0).splitlines() if "column 'd0'" in each)
    assert line.startswith("error: rank 0: step 40: the loss is nan") == ends
    assert "column 'd0' has 3e+38 (at most" in line
    assert f"data.parquet row {row}" in line
    assert f"began in samples {33 * STEP:,} to " in line
    (found,) = TrainingProgress.read(tmp_path / "run" / "progress.json").findings or ()
    assert (found.kind, found.column, found.first_step) == (
        FindingKind.LOSS_NOT_FINITE if ends else FindingKind.LOSS_EXPLODED,
        "d0",
        33,
    )
    if not ends:  # a start that goes on from there still knows the cause
        longer = arguments(tmp_path, data, logEverySteps=20, denseOptimizer=optimizer, epochs=2, maxSteps=80)
        ranks.succeed(TRAINER, longer, folder=tmp_path, count=2)
        progress = TrainingProgress.read(tmp_path / "run" / "progress.json")
        assert (progress.step, progress.findings) == (80, (found,))


def test_an_id_that_its_table_does_not_have_is_named_before_the_first_step(tmp_path: Path, ranks: RankServer) -> None:
    """With file and row, from the footer of the file."""
    data = columns(20)
    data["item"][1234] = TABLES[1].num_embeddings

    ended = ranks.run(TRAINER, arguments(tmp_path, data), folder=tmp_path, count=2, after_failure_s=60)

    assert set(ended.codes) == {ExitCode.INVALID_INPUT}
    assert "data.parquet row 1234: 'item' looks up row 50" in output(tmp_path, 0)

"""The sentences below the table that ends a run."""

import io
import json
from typing import Any, TypeVar

import pytest
from neuroshard_api.documents.finding import DataFinding, FindingKind
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.job.machine_speed import MachineSpeed
from neuroshard_api.job.status import BestBaseline, MeasuredCost, PredictedCost, StepCostStatus
from neuroshard_cli.local.result import RunResult, result_json, result_table
from rich.console import Console

Costs = TypeVar("Costs", bound=StepCostStatus)


def cost(kind: type[Costs], microseconds: int) -> Costs:
    """Return a cost whose parts, and total, take as long."""
    return kind(
        compute_microseconds=microseconds,
        forward_communication_microseconds=microseconds,
        backward_communication_microseconds=microseconds,
        total_microseconds=microseconds,
        source="cpu:test",
    )


def shown(
    percent: int,
    *,
    differences: tuple[str, ...] = (),
    late_ranks: str | None = None,
    progress: TrainingProgress | None = None,
    width: int = 200,
) -> str:
    """Return the end of a run whose worker waited for a processor for so long."""
    result = RunResult(
        job="test",
        num_devices=2,
        predicted=cost(PredictedCost, 123456),
        baseline=BestBaseline(algorithm="lookup_greedy", total_microseconds=223456),
        measured=cost(MeasuredCost, 234567).model_copy(update={"processor_wait_percent": percent}),
        error_percent=0,
        progress=progress,
        load_average=13.4,
        other_processors=1.25,
        differences=differences,
        late_ranks=late_ranks,
    )
    return printed(result, width=width)


def printed(result: RunResult, *, width: int = 300) -> str:
    """Return the end of a run."""
    file = io.StringIO()
    Console(file=file, width=width).print(result_table(result))
    return file.getvalue()


def test_a_machine_that_was_slower_has_a_prediction_of_its_own() -> None:
    """1 ms was predicted, which takes 1.1 on slower cores, and 0.6 ms more were spent waiting for one."""
    each: dict[str, Any] = {
        "compute_microseconds": 1000,
        "total_microseconds": 1000,
        "dense_microseconds": 500,
        "source": "cpu:test",
    }
    result = RunResult(
        job="test",
        num_devices=1,
        predicted=PredictedCost(**each),
        baseline=None,
        measured=MeasuredCost(**{**each, "compute_microseconds": 2000, "total_microseconds": 2000}),
        error_percent=100,
        progress=None,
        speed=MachineSpeed(rank=0, core_slowdown=1.1, processor_share=0.7, compute_wait_ms=0.6, dense_wait_ms=0.0),
    )

    table = printed(result)
    total = next(line for line in table.splitlines() if line.startswith("total"))

    assert "embedding part of a step, 1 device, in ms" in table
    assert ["as slow" in table, "1.700" in total, "total is +18 % from it" in table] == [True, True, True]
    assert "waited for one for 0.600 ms of its lookups and updates" in table
    assert "-9 % of 0.550 ms as slow" in table
    assert json.loads(result_json(result))["predictedAsSlow"]["totalMicroseconds"] == 1700


def test_a_trial_is_what_errors_are_of() -> None:
    """The error of the cost models alone is below the table."""
    result = RunResult(
        job="test",
        num_devices=1,
        predicted=cost(PredictedCost, 1000),
        baseline=None,
        tried=cost(MeasuredCost, 1500),
        measured=cost(MeasuredCost, 1650).model_copy(update={"dense_microseconds": 100}),
        error_percent=65,
        progress=None,
    )

    lines = [" ".join(line.split()) for line in printed(result).splitlines()]

    assert "predicted tried measured error" in lines
    assert "total 1.000 1.500 1.650 +10 %" in lines
    assert any("The cost models alone are +65 % off." in line for line in lines)
    assert json.loads(result_json(result))["tried"]["totalMicroseconds"] == 1500


@pytest.mark.parametrize(("percent", "is_shown"), [(59, True), (4, False)])
def test_a_busy_machine_is_named_with_its_load(percent: int, *, is_shown: bool) -> None:
    """Next to the share of time that a worker waited for a processor."""
    assert ("load average was 13.4" in shown(percent)) is is_shown
    assert ("other programs used at most 1.2 of them" in shown(percent)) is is_shown
    assert (f"waited for a processor for {percent} %" in shown(percent)) is is_shown


def test_what_the_prediction_missed_and_who_came_late_are_named() -> None:
    """Each in one line."""
    lines = shown(4, differences=("Rank 1 measured more.",), late_ranks="Rank 0 comes last.").splitlines()

    assert {"Rank 1 measured more.", "Rank 0 comes last."} <= {line.strip() for line in lines}


def test_the_table_keeps_its_words_at_60_columns() -> None:
    """A row for each part of a step, with all of its times."""
    rows = [" ".join(line.split()) for line in shown(4, width=60).splitlines()]

    assert "predicted measured error baseline" in rows
    assert "backward all-to-all 123.456 234.567 +90 %" in rows
    assert "total 123.456 234.567 +90 % 223.456" in rows


def test_findings_follow_the_metrics() -> None:
    """One in each line, those that have ended too."""
    ended = DataFinding(kind=FindingKind.LOSS_ROSE, first_step=3, last_step=4, before=0.4, now=0.5, until_step=5)
    progress = TrainingProgress(step=9, findings=(ended,))

    lines = " ".join(shown(4, progress=progress).split())

    assert "LossRose: the training loss rose from 0.4000 to 0.5000; began in steps 3 to 4, until step 5." in lines


def test_variants_are_listed_best_first() -> None:
    """One in each line, after the metrics of the best one; one that diverged is last, with its step."""
    metrics = {"auc": 0.8, "a/auc": 0.7, "a/normalized_entropy": 0.9, "b/auc": 0.8, "b/normalized_entropy": 0.8}
    progress = TrainingProgress(step=9, metrics=metrics, diverged={"c": 5})

    lines = [line.strip() for line in shown(4, progress=progress).splitlines()]
    begin = lines.index("Trained 9 steps, auc 0.8000.")
    assert lines[begin + 1 : begin + 4] == [
        "Variant b: auc 0.8000, normalized_entropy 0.8000.",
        "Variant a: auc 0.7000, normalized_entropy 0.9000.",
        "Variant c: diverged at step 5.",
    ]

"""The sentences below the table that ends a run."""

import io

import pytest
from neuroshard_api.job.status import MeasuredCost, PredictedCost
from neuroshard_cli.local.result import RunResult, result_table
from rich.console import Console


def shown(percent: int, *, difference: str | None = None, late_ranks: str | None = None) -> str:
    """Return the end of a run whose worker waited for a processor for so long."""
    result = RunResult(
        job="test",
        num_devices=2,
        predicted=PredictedCost(total_microseconds=1000, source="cpu:test"),
        baseline=None,
        measured=MeasuredCost(total_microseconds=1000, source="cpu:test", processor_wait_percent=percent),
        error_percent=0,
        progress=None,
        load_average=13.4,
        other_processors=1.25,
        difference=difference,
        late_ranks=late_ranks,
    )
    file = io.StringIO()
    Console(file=file, width=200).print(result_table(result))
    return file.getvalue()


@pytest.mark.parametrize(("percent", "is_shown"), [(59, True), (4, False)])
def test_a_busy_machine_is_named_with_its_load(percent: int, *, is_shown: bool) -> None:
    """Next to the share of time that a worker waited for a processor."""
    assert ("load average was 13.4" in shown(percent)) is is_shown
    assert ("other programs used at most 1.2 of them" in shown(percent)) is is_shown
    assert (f"waited for a processor for {percent} %" in shown(percent)) is is_shown


def test_what_the_prediction_missed_and_who_came_late_are_named() -> None:
    """Each in one line."""
    lines = shown(4, difference="Rank 1 measured more.", late_ranks="Rank 0 comes last.").splitlines()

    assert {"Rank 1 measured more.", "Rank 0 comes last."} <= {line.strip() for line in lines}

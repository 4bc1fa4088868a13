"""Specification of how long the stages of ``neuroshard run`` may take."""

from typing import Any

import pytest
from neuroshard_cli.local.stage_runner import StageFailedError, StageRunner, Work
from support.cli.local_runs import Runs

SIMULATED = {"backend": "Simulated", "deviceType": "h100-80gb", "budgetSeconds": 5}


@pytest.mark.parametrize(
    ("spec", "limit_s"),
    [
        ({"profiler": SIMULATED}, None),
        ({"profiler": SIMULATED, "experimental": {"profiler": {"timeoutSeconds": 60}}}, 60),
        ({"experimental": {"planner": {"workBudget": 10}}}, None),
        ({"experimental": {"planner": {"timeoutSeconds": 60}}}, 60),
    ],
    ids=["a profile", "a limited profile", "a plan", "a limited plan"],
)
def test_a_stage_has_the_limit_that_its_job_sets(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], limit_s: float | None
) -> None:
    """The default of a pod is none here: a machine that is busy takes longer, and holds no device of a cluster."""
    limits: list[float | None] = []

    def start(_runner: StageRunner, _name: str, work: Work) -> None:
        limits.append(work.within_s)
        raise StageFailedError(f"the stage {work.stage} was not started")

    monkeypatch.setattr(StageRunner, "start", start)
    result = runs.run(**spec)

    assert "was not started" in result.err
    assert limits == [limit_s]

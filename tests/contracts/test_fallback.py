"""The operator and ``neuroshard run`` plan with the fallback algorithm after the same failures of the planner."""

from pathlib import Path

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.main import run
from neuroshard_decisions import names
from support.cli.local_runs import Runs
from support.cli.stages import PLACE, TIMES_OUT, CalledStages
from support.operator.operator_process import Story

FALLBACK = "DimGreedy"
OUTCOMES = (
    (TIMES_OUT, True),
    (ExitCode.INTERNAL_ERROR, True),
    (ExitCode.INFEASIBLE, True),
    (ExitCode.TOO_LARGE, True),
    (137, True),
    (ExitCode.INVALID_INPUT, False),
    (ExitCode.UNUSABLE_BUNDLE, False),
    (ExitCode.MISSING_PACKAGE, False),
    (ExitCode.STORAGE, False),
    (ExitCode.CLUSTER, False),
)
"""How the first planner ends, and whether the fallback plans then."""


@pytest.mark.parametrize(("outcome", "falls_back"), OUTCOMES, ids=[str(outcome) for outcome, _ in OUTCOMES])
def test_the_operator_falls_back(outcome: str | int, *, falls_back: bool) -> None:
    """A second planner starts after failures that depend on the algorithm; any other failure ends the job."""
    story = Story(planner={"fallbackAlgorithm": FALLBACK}).do(names.PROFILER)
    if isinstance(outcome, int):
        story.fail(names.PLANNER, outcome)
    else:
        story.time_out(names.PLANNER)

    assert (story.seen == ("Planning", "FallbackPlannerRunning")) is falls_back
    assert (story.status["stage"] == "Failed") is not falls_back


@pytest.mark.parametrize(("outcome", "falls_back"), OUTCOMES, ids=[str(outcome) for outcome, _ in OUTCOMES])
def test_a_local_run_falls_back(
    outcome: str | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, falls_back: bool
) -> None:
    """The plan is the fallback algorithm's after the same failures, and the run fails after the same others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PLACE, CalledStages(first_planner=outcome))
    runs = Runs(tmp_path, lambda *arguments: run([str(argument) for argument in arguments]))

    code = runs.run(planner={"fallbackAlgorithm": FALLBACK}, experimental={"planner": {"timeoutSeconds": 100}})

    if falls_back:
        assert code == ExitCode.OK
        assert Plan.read(runs.run_dir / "plan.json").algorithm == Algorithm.DIM_GREEDY
    else:
        assert code == outcome

"""The trial of a plan before the training of a local run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from neuroshard_api.documents.step_report import StepReport
from neuroshard_cli.local.directory import file_digest
from neuroshard_cli.local.measured import trial_in
from neuroshard_cli.local.result import result_of
from support import builders
from support.cli.local_life import LocalLife, local_life
from support.cli.local_runs import made_plan

NOISE = "live-sharding.json"
"""What a trial writes besides its report."""
LONG = {"numSamples": 10_000_000}
"""Data of a training that is worth a trial."""


@pytest.fixture
def life(tmp_path: Path) -> Iterator[LocalLife]:
    """A run that measures its machine, none of whose processes is real; its plan is made."""
    with local_life(tmp_path, profiler={"policy": "IfNotPresent"}, data=LONG) as made:
        made.begin()
        made.profile()
        made.end("plan")  # the dense part is counted
        made.plan()
        yield made


def reported(life: LocalLife) -> StepReport:
    """Let the trial write a report of the plan in force."""
    life.directory.trial_dir.mkdir()
    report = builders.step_report(plan_sha256=file_digest(life.directory.plan_file) or "")
    (life.directory.trial_dir / "step-report.json").write_text(report.to_json(), encoding="utf-8")
    (life.directory.trial_dir / NOISE).touch()
    return report


def test_a_plan_is_tried_before_the_training(life: LocalLife) -> None:
    """By the same trainer; of its folder the report alone stays."""
    (trial,) = life.running()
    report = reported(life)
    life.end("trial")

    assert (trial.stage, life.trainer.stage) == ("trial", "train")
    assert int(str(trial.after("--trial-steps"))) >= 40
    assert trial.after("--plan") == life.trainer.after("--plan")
    assert trial.after("--run-dir") == life.trainer.after("--run-dir") == life.directory.train_dir
    assert trial_in(life.directory) == report
    assert not (life.directory.trial_dir / NOISE).exists()
    result = result_of("test", life.directory, life.local._shown.in_force())
    assert result.tried is not None
    assert result.tried.total_microseconds


def test_a_plan_is_tried_once(life: LocalLife) -> None:
    """A command that goes on with the run trains at once; an interrupted trial is repeated."""
    life.begin()
    assert [each.stage for each in life.running()] == ["trial"]
    reported(life)
    life.end("trial")

    life.begin()

    assert [each.stage for each in life.running()] == ["train"]


def test_a_training_begins_without_a_trial_that_failed(life: LocalLife) -> None:
    """The failure is shown, and another command tries the plan again: the cause may be gone."""
    reported(life)
    life.end("trial", 1, "error: no space is left")

    assert life.trainer.stage == "train"
    assert trial_in(life.directory) is None
    assert "no space is left" in life.said.getvalue()
    assert "the training begins without it" in life.said.getvalue()
    life.begin()
    assert [each.stage for each in life.running()] == ["trial"]


def test_a_training_begins_after_a_trial_of_too_few_steps(life: LocalLife) -> None:
    """Which took all its time; it is not repeated, for its steps would be as slow."""
    life.end("trial")

    assert life.trainer.stage == "train"
    assert trial_in(life.directory) is None
    assert "fewer than 20 steps in 60 s; the training begins without it" in life.said.getvalue()
    life.begin()
    assert [each.stage for each in life.running()] == ["train"]


def test_restarts_need_no_trial(life: LocalLife) -> None:
    """The workers of another attempt train at once."""
    reported(life)
    life.end("trial")
    life.ready()
    life.end("train", 1)

    assert [each.stage for each in life.running()] == ["train"]


def test_a_suspended_trial_frees_the_machine_and_is_repeated(life: LocalLife) -> None:
    """Nothing runs while the shell has the terminal."""
    life.local.suspend()
    life.settle()

    assert "0 processes run" in life.said.getvalue()
    assert [each.stage for each in life.running()] == ["trial"]
    assert len(life.stages) > 1


def test_a_given_plan_is_not_tried(tmp_path: Path) -> None:
    """Its price says nothing of this machine."""
    with local_life(tmp_path) as life:
        life.begin(given=made_plan(tmp_path))
        assert [each.stage for each in life.running()] == ["train"]

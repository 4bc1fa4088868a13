"""Specification of failurePolicy, runPolicy and suspend in ``neuroshard run``: the rules of the operator."""

import io
import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.job.status import Stage
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.lifecycle import DeadlineMissedError, LocalLife
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.stage_process import end_marked
from neuroshard_cli.local.stage_runner import StageRunner
from neuroshard_decisions.actions import Decision, EventReason, Start, WorkersRun
from rich.console import Console
from support import builders
from support.cli.local_runs import TRAINER, Runs, plan_text
from support.depth import depth

START = datetime(2026, 1, 1, tzinfo=UTC)
FAILS_ONCE = f"""{TRAINER}
first = not (run_dir / "failed-before").exists()
(run_dir / "failed-before").touch()
if first:
    sys.exit(40)
"""
ALWAYS_FAILS = f"{TRAINER}\nsys.exit(40)\n"


class Clock:
    """A clock that moves by the time that is waited."""

    def __init__(self) -> None:
        self.now = START
        self.waited_s = 0.0

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Wait."""
        self.waited_s += seconds
        self.now += timedelta(seconds=seconds)


def a_life(folder: Path, clock: Clock, **parts: Any) -> LocalLife:
    """Return the life of a run in a folder, which has a plan."""
    directory = RunDirectory(folder)
    directory.train_dir.mkdir(parents=True, exist_ok=True)
    if not directory.plan_file.exists():
        directory.plan_file.write_text(plan_text(1), encoding="utf-8")
    life = LocalLife(directory, builders.job(**parts), clock=clock, wait=clock.wait)
    life.train_under_plan()
    return life


def begun(life: LocalLife) -> WorkersRun | None:
    """Begin the attempt that is decided on, if one may start now."""
    starts = [each.run for each in life.decide().actions if isinstance(each, Start)]
    run = next((each for each in starts if isinstance(each, WorkersRun)), None)
    if run is not None:
        life.begin_attempt(run)
    return run


def ready(life: LocalLife) -> None:
    """Let the workers train."""
    life.ready_file.touch()
    assert life.is_due()
    life.decide()


def failed(life: LocalLife, code: int = 1) -> Decision:
    """Return the decision once the workers that run ended with an exit code."""
    life.end_attempt(code, "the trainer failed")
    return life.decide()


def awaited(life: LocalLife, clock: Clock) -> float:
    """Return the seconds until the next attempt may start, and begin it."""
    clock.waited_s = 0.0
    while begun(life) is None:
        life.await_turn(lambda _: None)
    return clock.waited_s


def test_a_worker_that_fails_is_restarted(runs: Runs) -> None:
    """Without a policy in the job file the first restart follows at once, and the status records it."""
    result = runs.train(script=FAILS_ONCE)

    status = json.loads((runs.run_dir / "status.json").read_text(encoding="utf-8"))
    assert result.code == ExitCode.OK
    assert len(runs.starts) == 2
    assert "restarting all workers (restart 1 of 3, failure rule: default)" in result.err
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)
    assert status["lastFailure"]["exitCode"] == 40


def test_no_restart_is_left_where_none_is_permitted(runs: Runs) -> None:
    """With maxRestarts 0 the first failure ends the run; the next command begins to count again."""
    result = runs.train(script=ALWAYS_FAILS, failurePolicy={"maxRestarts": 0})

    assert result.code == ExitCode.JOB_FAILED
    assert len(runs.starts) == 1
    assert runs.train(script=FAILS_ONCE, failurePolicy={"maxRestarts": 1}).code == ExitCode.OK


@pytest.mark.parametrize(
    ("action", "num_starts"), [("FailJob", 1), ("RestartJobAndIgnoreMaxRestarts", 2)], ids=["fails", "restarts"]
)
def test_the_first_rule_that_matches_decides(runs: Runs, action: str, num_starts: int) -> None:
    """Exit codes are those of the workers, not torchrun's."""
    rule = {"action": action, "onExitCodes": {"operator": "In", "values": [40]}}

    runs.train(script=FAILS_ONCE, failurePolicy={"maxRestarts": 0, "rules": [rule]})

    assert len(runs.starts) == num_starts


def test_a_rule_that_replans_gets_another_plan(runs: Runs) -> None:
    """The new request keeps 5 percent of the devices' memory free, and a run after it takes its plan again."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [40]}}
    policy = {"failurePolicy": {"rules": [rule]}}

    result = runs.run(script=FAILS_ONCE, **policy)

    request = json.loads((runs.run_dir / "request.json").read_text(encoding="utf-8"))
    assert result.code == ExitCode.OK
    assert request["memory"]["reserve_bytes"] >= int(0.05 * request["topology"]["device"]["memory_bytes"])
    assert result.err.count("plan: done") == 2
    assert "5 % of each device's memory stays free" in result.err
    again = runs.run(script=TRAINER, **policy)
    assert "plan: reused" in again.err
    assert "5 % of each device's memory stays free" in again.err


def test_memory_that_failures_kept_free_is_used_for_other_inputs(runs: Runs) -> None:
    """The failures were those of another plan; the run says so, and says nothing of it afterwards."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [40]}}
    policy = {"failurePolicy": {"rules": [rule]}}
    runs.run(script=FAILS_ONCE, **policy)
    reserved = json.loads((runs.run_dir / "request.json").read_text(encoding="utf-8"))["memory"]["reserve_bytes"]

    other = runs.run(script=TRAINER, planner={"shardingTypes": ["TableWise"]}, **policy)

    request = json.loads((runs.run_dir / "request.json").read_text(encoding="utf-8"))
    assert "the memory that failures kept free is used again" in other.err
    assert "stays free" not in other.err
    assert request["memory"]["reserve_bytes"] < reserved


def test_a_run_beyond_its_deadline_fails(process_runs: Runs) -> None:
    """The workers are stopped, and are not restarted."""
    result = process_runs.train(script="import signal; signal.pause()", runPolicy={"activeDeadlineSeconds": 1})

    assert result.code == ExitCode.JOB_FAILED
    assert "runPolicy.activeDeadlineSeconds (1 s)" in result.err


def test_a_suspended_job_is_not_run(runs: Runs) -> None:
    """The field is named, and nothing was begun."""
    result = runs.run(suspend=True)

    assert result.code == ExitCode.INVALID_INPUT
    assert "spec.suspend: is true" in result.err
    assert not runs.run_dir.exists()


def test_a_suspended_run_frees_the_machine_and_resumes(tmp_path: Path) -> None:
    """Ctrl-Z ends the stage's processes; once the run is continued, the stage runs again, and deadlines begin again."""
    clock, directory = Clock(), RunDirectory(tmp_path)
    left: list[int] = []
    life = LocalLife(directory, builders.job(), clock=clock, stop=lambda: left.append(end_marked(str(directory.path))))
    started = tmp_path / "started"
    code = f"""
import pathlib, signal
started = pathlib.Path({str(started)!r})
is_resumed = started.exists()
started.touch()
if not is_resumed:
    signal.pause()
"""
    asked: list[bool] = []

    def look() -> None:
        if started.exists() and not asked:
            asked.append(True)
            clock.now += timedelta(minutes=1)
            os.kill(os.getpid(), signal.SIGTSTP)

    directory.log("train").parent.mkdir()
    view = RunView(("train",), Console(file=io.StringIO()))
    runner = StageRunner(directory, view, check=life.check, suspend=life.suspend)
    runner.run("train", [sys.executable, "-c", code], {}, look=look)

    assert left == [0]
    assert life.status.start_time == START + timedelta(minutes=1)


def test_pauses_grow_and_restarts_end(tmp_path: Path) -> None:
    """Three restarts count: at once, after 10 s, after 20 s; the fourth failure ends the job."""
    clock, pauses_s = Clock(), []
    life = a_life(tmp_path, clock)
    awaited(life, clock)
    for _ in range(3):
        failed(life)
        pauses_s.append(awaited(life, clock))
    failed(life)

    assert pauses_s == [0.0, 10.0, 20.0]
    assert (life.has_ended, life.status.stage, life.status.reason) == (True, Stage.FAILED, "MaxRestartsExceeded")


def test_an_interrupted_run_keeps_its_restarts_and_its_deadline_begins_again(tmp_path: Path) -> None:
    """A run that ended counts from 0; one that was interrupted goes on."""
    clock = Clock()
    life = a_life(tmp_path, clock)
    begun(life)
    failed(life)
    life.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    clock.now += timedelta(hours=1)
    with a_life(tmp_path, clock, runPolicy={"activeDeadlineSeconds": 60}) as resumed:
        resumed.check()
        run = begun(resumed)
        assert run is not None
        assert run.attempt == 1
    assert a_life(tmp_path, clock).status.restarts is None


def test_a_deadline_of_the_start_holds_until_the_workers_are_ready(tmp_path: Path) -> None:
    """NeuroShard's trainer makes a file once it trains; one's own trains from its start on."""
    clock = Clock()
    life = a_life(tmp_path, clock, runPolicy={"preRunningDeadlineSeconds": 60})
    begun(life)
    ready(life)
    clock.now += timedelta(minutes=2)
    life.check()

    waiting = a_life(tmp_path, clock, runPolicy={"preRunningDeadlineSeconds": 60})
    begun(waiting)
    waiting.decide()
    clock.now += timedelta(minutes=2)
    with pytest.raises(DeadlineMissedError, match="preRunningDeadlineSeconds"):
        waiting.check()


def test_workers_without_progress_are_restarted(tmp_path: Path) -> None:
    """Once they have reported, they must report again in time; workers that never report are left alone."""
    clock = Clock()
    life = a_life(tmp_path, clock, failurePolicy={"progressTimeoutSeconds": 60})
    begun(life)
    ready(life)
    clock.now += timedelta(minutes=2)
    assert not life.stops(life.decide())
    (tmp_path / "train" / "progress.json").write_text(TrainingProgress(step=1).to_json(), encoding="utf-8")
    assert life.is_due()
    life.decide()
    clock.now += timedelta(minutes=2)
    assert life.is_due()
    hung = life.decide()

    assert [each.reason for each in hung.events] == [EventReason.WORKERS_RESTARTED]
    assert "progressTimeoutSeconds 60" in hung.events[0].message
    assert life.stops(life.decide())
    life.stop_attempt()
    run = begun(life)
    assert run is not None
    assert run.attempt == 1


def test_workers_that_something_else_stopped_count_as_failed(tmp_path: Path) -> None:
    """Exit code 143 is a cluster's own doing; here nothing but a failure sends it, and it would repeat for ever."""
    life = a_life(tmp_path, Clock())
    begun(life)
    failed(life, 143)

    assert life.status.restarts_count_towards_max == 1


def test_a_plan_waits_until_it_is_approved(tmp_path: Path) -> None:
    """The status says how; another plan's name approves nothing."""
    life = a_life(tmp_path, Clock(), launchPolicy="Manual")
    assert begun(life) is None
    assert f"run `neuroshard approve {tmp_path}`" in (life.status.message or "")
    (tmp_path / "approved-plan").write_text("job-plan-0\n", encoding="utf-8")
    assert begun(life) is None
    assert life.status.plan is not None
    assert life.status.plan.config_map_ref is not None
    (tmp_path / "approved-plan").write_text(f"{life.status.plan.config_map_ref.name}\n", encoding="utf-8")

    assert begun(life) is not None


@settings(max_examples=depth(25, 500))
@given(codes=st.lists(st.sampled_from((1, 7, 137, 143)), max_size=12), most=st.integers(0, 4), data=st.data())
def test_restarts_grow_by_one_and_those_that_count_stay_within_the_maximum(
    tmp_path_factory: pytest.TempPathFactory, codes: list[int], most: int, data: st.DataObject
) -> None:
    """In every history of failures and interruptions, as in a cluster."""
    folder, clock, policy = tmp_path_factory.mktemp("run"), Clock(), {"maxRestarts": most}
    life = a_life(folder, clock, failurePolicy=policy)
    for number, code in enumerate(codes, start=1):
        clock.wait(data.draw(st.sampled_from((0.0, 60.0, 4000.0))))
        awaited(life, clock)
        failed(life, code)
        if life.has_ended:
            assert (life.status.restarts_count_towards_max or 0) == most
            return
        if data.draw(st.booleans()):
            life.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
            life = a_life(folder, clock, failurePolicy=policy)
        assert life.status.restarts == number
        assert (life.status.restarts_count_towards_max or 0) <= most

"""Specification of failurePolicy, runPolicy and suspend in ``neuroshard run``: the rules of the operator."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.job.status import Stage
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.local.suspended import resumed_job
from support import builders
from support.cli.local_life import OWN, LocalLife, local_life
from support.cli.local_runs import TRAINER, Runs, made_plan
from support.depth import depth

FAILS_ONCE = f"""{TRAINER}
first = not (run_dir / "failed-before").exists()
(run_dir / "failed-before").touch()
if first:
    sys.exit(40)
"""
ALWAYS_FAILS = f"{TRAINER}\nsys.exit(40)\n"


@pytest.fixture
def life(tmp_path: Path) -> Iterator[LocalLife]:
    """A run under a plan that is given, none of whose processes is real."""
    with local_life(tmp_path) as made:
        yield made


def begin(life: LocalLife, **spec: Any) -> None:
    """Give the command, with these parts of the job's spec."""
    life.begin(given=made_plan(life.job_file.parent), **spec)


def awaited_s(life: LocalLife) -> float:
    """Return the seconds until the next attempt starts."""
    before = life.clock.now
    while not life.running("train"):
        life.wait(1.0)
    return (life.clock.now - before).total_seconds()


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
    assert "planning with" not in result.err
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


def test_a_suspended_job_waits_until_its_file_resumes_it(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """With what the file says then; one that is half written is waited for."""
    path = runs.write(suspend=True)
    texts = ["kind: [", path.read_text(), runs.write(launchPolicy="PlanOnly").read_text()]
    runs.write(suspend=True)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        path.write_text(texts[len(waits)])
        waits.append(seconds)

    found = resumed_job(path, wait=wait)

    said = capsys.readouterr().err
    assert len(waits) == len(texts)
    assert (found.job.spec.suspend, found.job.spec.launch_policy) == (False, "PlanOnly")
    assert f"suspended: spec.suspend is true; the run begins once {path} says false" in said
    assert said.count("suspended: ") == 2


def test_a_suspended_run_frees_the_machine_and_resumes(life: LocalLife) -> None:
    """Ctrl-Z ends the stage's processes; once the run is continued, the stage runs again, and deadlines begin again."""
    begin(life, runPolicy={"activeDeadlineSeconds": 100})
    life.ready()
    life.wait(90.0)
    first = life.trainer
    life.local.suspend()
    life.settle()
    life.wait(90.0)

    assert "0 processes run" in life.said.getvalue()
    assert first.is_stopped
    assert life.trainer is not first
    assert not life.local.has_ended
    assert life.status.restarts == 0


def test_pauses_grow_and_restarts_end(life: LocalLife) -> None:
    """Three restarts count: at once, after 10 s, after 20 s; the fourth failure ends the job."""
    pauses_s = []
    begin(life)
    for _ in range(3):
        life.end("train", 1)
        pauses_s.append(awaited_s(life))
    life.end("train", 1)

    assert [round(each, -1) for each in pauses_s] == [0.0, 10.0, 20.0]
    assert (life.status.stage, life.status.reason) == (Stage.FAILED, "MaxRestartsExceeded")


def test_an_interrupted_run_keeps_its_restarts_and_its_deadline_begins_again(life: LocalLife) -> None:
    """A run that ended counts from 0; one that was interrupted goes on."""
    begin(life)
    life.end("train", 1)
    life.clock.wait(3600.0)
    begin(life, runPolicy={"activeDeadlineSeconds": 60})
    kept = life.status.restarts
    life.wait(61.0)
    ended = life.status.reason
    begin(life)

    assert (kept, ended, life.status.restarts) == (1, "DeadlineExceeded", 0)


def test_a_deadline_of_the_start_holds_until_the_workers_are_ready(life: LocalLife) -> None:
    """NeuroShard's trainer makes a file once it trains; one's own trains from its start on."""
    policy = {"runPolicy": {"preRunningDeadlineSeconds": 60}}
    begin(life, **policy)
    life.ready()
    life.wait(120.0)
    has_run = not life.local.has_ended
    begin(life, **policy)
    life.wait(120.0)

    assert (has_run, life.status.reason) == (True, "PreRunningDeadlineExceeded")


def test_workers_without_progress_are_restarted(life: LocalLife) -> None:
    """Once they have reported, they must report again in time; workers that never report are left alone."""
    begin(life, failurePolicy={"progressTimeoutSeconds": 60})
    life.ready()
    life.wait(120.0)
    first = life.trainer
    (life.directory.train_dir / "progress.json").write_text(TrainingProgress(step=1).to_json(), encoding="utf-8")
    life.settle()
    life.wait(120.0)

    assert first.is_stopped
    assert life.trainer is not first
    assert life.status.restarts == 1
    assert "the workers hang (NoProgress)" in life.said.getvalue()
    assert "progressTimeoutSeconds 60" in life.said.getvalue()


def test_workers_that_something_else_stopped_count_as_failed(life: LocalLife) -> None:
    """Exit code 143 is a cluster's own doing; here nothing but a failure sends it, and it would repeat for ever."""
    begin(life)
    life.end("train", 143)

    assert life.status.restarts_count_towards_max == 1


def test_a_plan_waits_until_it_is_approved(life: LocalLife) -> None:
    """The status says how; another plan's name approves nothing."""
    begin(life, launchPolicy="Manual")
    life.directory.approved_file.write_text("job-plan-0\n", encoding="utf-8")
    life.settle()
    waits, plan = not life.running("train"), life.status.plan
    assert f"run `neuroshard approve {life.directory.path}`" in (life.status.message or "")
    assert plan is not None
    assert plan.config_map_ref is not None
    life.directory.approved_file.write_text(f"{plan.config_map_ref.name}\n", encoding="utf-8")
    life.settle()

    assert waits
    assert life.running("train")


@settings(max_examples=depth(25, 300))
@given(codes=st.lists(st.sampled_from((1, 7, 137, 143)), max_size=12), most=st.integers(0, 4), data=st.data())
def test_restarts_grow_by_one_and_those_that_count_stay_within_the_maximum(
    tmp_path_factory: pytest.TempPathFactory, codes: list[int], most: int, data: st.DataObject
) -> None:
    """In every history of failures and interruptions, as in a cluster."""
    with local_life(tmp_path_factory.mktemp("run"), failurePolicy={"maxRestarts": most}) as life:
        begin(life)
        for number, code in enumerate(codes, start=1):
            life.wait(data.draw(st.sampled_from((0.0, 60.0, 4000.0))))
            awaited_s(life)
            life.end("train", code)
            if life.local.has_ended:
                assert (life.status.restarts_count_towards_max or 0) == most
                return
            if data.draw(st.booleans()):
                begin(life)
            assert life.status.restarts == number
            assert (life.status.restarts_count_towards_max or 0) <= most


def test_a_profile_is_taken_again_and_made_anew_for_other_settings(tmp_path: Path) -> None:
    """The plan is made with the profile of the present settings; the one of others is forgotten."""
    with local_life(tmp_path, profiler={"backend": "Simulated", "deviceType": "h100-80gb"}, trainer=OWN) as life:
        life.begin()
        life.profile()
        (first,) = life.running("plan")
        life.begin()
        again = [each.stage for each in life.running()]
        life.begin(model={**builders.job_data()["spec"]["model"], "batchSizePerDevice": 64})
        life.profile()
        (second,) = life.running("plan")

    assert again == ["plan"]
    assert second.after("--bundle").is_dir()
    assert not first.after("--bundle").exists()


def test_a_sweep_measures_its_machine_once(tmp_path: Path) -> None:
    """Both times it gets the cost models, and no plan is made."""
    with local_life(tmp_path, profiler={"backend": "Simulated", "deviceType": "h100-80gb"}, trainer=OWN) as life:
        life.begin()
        life.profile()
        before = len(life.stages)
        models = life.local_again().models()

    assert models.source.startswith("simulated:")
    assert len(life.stages) == before

"""Further plans of ``neuroshard run``: which ones are made and taken, and when the record says so."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.job.replanning import ReplanningStatus
from neuroshard_api.replanning.record import suggested_plan
from neuroshard_cli.local.directory import file_digest
from support.cli.local_life import OWN, LocalLife, local_life


@pytest.fixture
def life(tmp_path: Path) -> Iterator[LocalLife]:
    """A run that trains under its first plan, none of whose processes is real."""
    with local_life(tmp_path, trainer=OWN) as made:
        made.begin()
        made.plan()
        made.ready()
        made.wait(600.0)
        yield made


class KilledError(BaseException):
    """The process ended here, as far as its files can tell."""


def record(life: LocalLife) -> ReplanningStatus:
    """Return the record of further plans."""
    found = life.status.replanning
    assert found is not None
    return found


def resume(life: LocalLife, mode: str) -> None:
    """Give the command again with a mode of replanning, and let it train for a while."""
    life.begin(replanning={"mode": mode})
    life.ready()
    life.wait(600.0)


def test_a_candidate_that_pays_is_trained_under(life: LocalLife) -> None:
    """The trainer is stopped in good order; the record dates each plan by its own start."""
    resume(life, "Auto")
    first, before = life.trainer, file_digest(life.directory.plan_file)
    life.report()
    life.plan_further()
    taken = record(life)

    assert first.is_stopped
    assert life.trainer is not first
    assert (taken.accepted, taken.replans, taken.candidate) == (1, 1, None)
    assert [each.reason for each in taken.history] == ["PlanWritten", "InputsDrifted"]
    assert [each.hash for each in taken.history] == [f"sha256:{before}", f"sha256:{in_force(life)}"]
    starts = [each.start_time for each in taken.history]
    assert starts == [life.clock.now - timedelta(minutes=10), life.clock.now]
    assert life.directory.candidate_file.read_bytes() == life.directory.plan_file.read_bytes()
    assert "restarts under another plan" in life.said.getvalue()


def in_force(life: LocalLife) -> str | None:
    """Return the digest of the plan that the folder has."""
    return file_digest(life.directory.plan_file)


def test_a_training_that_fails_under_an_accepted_candidate_goes_back(life: LocalLife) -> None:
    """Once, and without another search: the plan before is not given up."""
    resume(life, "Auto")
    before = in_force(life)
    life.report()
    life.plan_further()
    life.end("train", 1)

    assert [each.reason for each in record(life).history] == ["PlanWritten", "InputsDrifted", "PlanFailed"]
    assert record(life).accepted is None
    assert in_force(life) == before
    assert not life.running("plan")
    life.end("train", 1)
    assert len(record(life).history) == 3


def test_a_candidate_whose_planner_was_interrupted_is_made_again(life: LocalLife) -> None:
    """It has neither a verdict nor a file; the job has asked for one candidate."""
    resume(life, "Suggest")
    life.report()
    asked = len(life.running("replan"))
    resume(life, "Suggest")
    life.report()

    assert (asked, len(life.running("replan")), record(life).candidates) == (1, 1, 1)


def test_a_planner_that_fails_leaves_the_training_alone(life: LocalLife) -> None:
    """The sentence has the cause and the log."""
    resume(life, "Auto")
    life.report()
    life.end("replan", 3, "error: no plan fits")

    assert life.running("train")
    assert f"no plan fits (log: {life.directory.log('replan')})" in life.said.getvalue()
    assert record(life).candidate is not None


def test_a_candidate_that_is_made_while_its_training_restarts_is_no_other_plan(life: LocalLife) -> None:
    """What its planner wrote is judged, and not the plan in force."""
    resume(life, "Suggest")
    life.report()
    for _ in range(2):
        life.end("train", 1)
    waits = not life.running("train")
    life.plan_further()
    life.wait(600.0)
    life.report()

    assert waits
    assert record(life).candidate is not None
    assert suggested_plan(record(life)) is not None
    assert life.directory.candidate_file.read_bytes() != life.directory.plan_file.read_bytes()


def test_a_candidate_that_was_suggested_is_taken_once_the_user_approves_it(life: LocalLife) -> None:
    """The note says how; another plan's name approves nothing."""
    resume(life, "Suggest")
    before = in_force(life)
    life.report()
    life.plan_further()
    shown = suggested_plan(record(life))
    life.directory.approved_file.write_text("another\n", encoding="utf-8")
    life.settle()
    is_kept = in_force(life) == before

    assert f"to take it: run `neuroshard approve {life.directory.path}`" in life.said.getvalue()
    assert is_kept
    life.directory.approved_file.write_text(f"{shown}\n", encoding="utf-8")
    life.settle()
    assert record(life).accepted == 1
    assert in_force(life) != before


def test_the_record_of_further_plans_goes_with_its_training(life: LocalLife) -> None:
    """Another training in this folder begins with none, and under the plan that the job states."""
    before = in_force(life)
    resume(life, "Auto")
    life.report()
    life.plan_further()
    life.begin(training={"seed": 7})

    assert life.status.replanning is None
    assert in_force(life) != before, "searched again"
    assert (life.directory.path / "train.1").exists()


def test_inputs_that_were_counted_under_another_plan_are_not_planned_for(life: LocalLife) -> None:
    """The training writes them again; until then no planner starts."""
    resume(life, "Auto")
    life.report(plan_sha256="7" * 64)
    before = len(life.running("replan"))
    life.report()

    assert (before, len(life.running("replan"))) == (0, 1)


def test_changes_of_deduplicated_features_alone_are_noted_once_and_not_planned_for(life: LocalLife) -> None:
    """Their counts do not separate another duplication factor from other lists."""
    resume(life, "Auto")
    for _ in range(2):
        life.report(changed_features=("item",), without_repeats=("item",))
    note = "CandidateUnsupported: inputs drifted since step 4,000, and no plan is made for them: only deduplicated"

    assert life.said.getvalue().count(note) == 1
    assert not life.running("replan")


def test_what_cannot_be_read_of_a_status_is_named_and_left_out(life: LocalLife) -> None:
    """The rest is kept, and the plan is searched no more."""
    text = life.directory.status_file.read_text(encoding="utf-8")
    life.directory.status_file.write_text(text.replace('"restarts": 0', '"restarts": -1'), encoding="utf-8")
    life.begin()

    assert "status.json: restarts cannot be read, and is left out" in life.said.getvalue()
    assert life.running("train")


def killed_at(life: LocalLife, monkeypatch: pytest.MonkeyPatch, at: int) -> bool:
    """Let the candidate be made, judged, and taken until the write of a number, which does not happen."""
    replace, writes = os.replace, list[str]()

    def replace_or_die(source: Any, target: Any) -> None:
        writes.append(str(target))
        if len(writes) > at:
            raise KilledError
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace_or_die)
        try:
            life.plan_further()
        except KilledError:
            return True
    return False


def test_a_run_killed_before_any_write_of_an_acceptance_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command trains under the candidate, counts one restart, and searches no other plan."""
    killed, at = True, 0
    while killed:
        with local_life(tmp_path / str(at), trainer=OWN, replanning={"mode": "Auto"}) as life:
            life.begin()
            life.plan()
            life.wait(600.0)
            life.report()
            killed = killed_at(life, monkeypatch, at)
            life.begin()
            life.wait(600.0)
            if record(life).accepted is None:
                life.report()
                life.plan_further()

            assert (record(life).replans, record(life).accepted, len(record(life).history)) == (1, 1, 2), at
            assert record(life).history[-1].hash == f"sha256:{in_force(life)}", at
            assert not life.running("plan"), at
            assert life.running("train"), at
        at += 1
    assert at > 5, "documents, status, and plan"


def test_a_plan_that_was_taken_stays_in_mode_off(life: LocalLife) -> None:
    """Off makes no further plans: nothing is searched again."""
    resume(life, "Auto")
    life.report()
    life.plan_further()
    taken = in_force(life)
    life.begin(launchPolicy="PlanOnly", replanning={"mode": "Off"})

    assert (life.status.reason, in_force(life)) == ("PlanOnly", taken)


def test_with_launch_policy_manual_a_candidate_is_suggested_alone(life: LocalLife) -> None:
    """As in a cluster: approval is for the plan that the user looked at, and for none that is made later."""
    plan = life.status.plan
    assert plan is not None
    assert plan.config_map_ref is not None
    life.directory.approved_file.write_text(plan.config_map_ref.name, encoding="utf-8")
    life.begin(launchPolicy="Manual", replanning={"mode": "Auto"})
    life.wait(600.0)
    life.report()
    life.plan_further()

    assert record(life).candidate is not None
    assert suggested_plan(record(life))
    assert record(life).replans in {None, 0}
    assert "BetterPlanFound: for the changed inputs" in life.said.getvalue()

"""Candidates of ``neuroshard run``: which ones may be taken, and when the record says so."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.documents.plan import IncumbentPlan
from neuroshard_api.job.replanning import CandidatePlan, ReplanningStatus
from neuroshard_api.replanning.record import with_plan_before
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.replanning import LocalReplanning, PlanTakenError, put_accepted_in_place, shown_candidate
from support import builders
from support.cli.local_candidates import replanning
from support.trainer import training_builders

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SINCE_STEP = 4_000


class Training:
    """A training whose inputs drifted, and whose candidate costs half of the plan in force."""

    def __init__(self, folder: Path) -> None:
        self.directory = RunDirectory(folder)
        self.directory.train_dir.mkdir()
        self.directory.log("any").parent.mkdir()
        plan = builders.plan(builders.request(*builders.tables(4)))
        self.directory.plan_file.write_text(plan.to_json(), encoding="utf-8")
        self.plan_hash = file_digest(self.directory.plan_file) or ""
        self.half_ms = plan.predicted.total_ms
        self.replanning: LocalReplanning | None = None
        self.notes: list[str] = []
        embedding_ms = 2 * self.half_ms
        evidence = (Evidence(part=StepPart.COMPUTE, rank=0, reference_ms=1.0, recent_ms=2.0),)
        change = DriftChange(
            cause=SlowdownCause.INPUTS_DRIFTED, tables=("t0",), since_step=SINCE_STEP, evidence=evidence
        )
        rest = dict.fromkeys(
            (
                "backward_compute_ms",
                "input_communication_ms",
                "forward_communication_ms",
                "backward_communication_ms",
            ),
            0.0,
        )
        ranks = tuple(
            builders.rank_times(rank, forward_compute_ms=embedding_ms, step_ms=embedding_ms, **rest) for rank in (0, 1)
        )
        documents = {
            "progress.json": builders.progress(step=5_000, num_steps=10**7),
            "step-report.json": builders.step_report(plan_sha256=self.plan_hash, ranks=ranks, first_step=4_900),
            "input-statistics.json": training_builders.input_statistics(plan_sha256=self.plan_hash),
            "drift-report.json": training_builders.drift_report(
                plan_sha256=self.plan_hash,
                last_step=5_000,
                reference=ranks,
                recent=ranks,
                changes=(change,),
                checkpoint_ms=1.0,
                start_ms=1.0,
            ),
        }
        for name, document in documents.items():
            (self.directory.train_dir / name).write_text(document.to_json(), encoding="utf-8")

    def candidate(self, *, incumbent: str, since_step: int = SINCE_STEP) -> None:
        """Leave a candidate for a change, made near a plan of that hash a minute ago."""
        near = IncumbentPlan(plan_sha256=incumbent, total_ms=2 * self.half_ms, fits=True)
        plan = builders.plan(builders.request(*builders.tables(4)))
        places = [each.shards for each in reversed(plan.tables)]
        moved = tuple(
            each.model_copy(update={"shards": shards}) for each, shards in zip(plan.tables, places, strict=True)
        )
        plan = plan.model_copy(update={"incumbent": near, "tables": moved})
        self.directory.candidate_file.write_text(plan.to_json(), encoding="utf-8")
        self.asked(since_step=since_step)

    def asked(self, *, since_step: int = SINCE_STEP) -> None:
        """Record that a candidate was asked for."""
        start = NOW - timedelta(seconds=60)
        candidate = CandidatePlan(number=1, since_step=since_step, start_time=start)
        record = ReplanningStatus(candidates=1, candidate=candidate)
        self.directory.replanning_file.write_text(record.model_dump_json(exclude_none=True), encoding="utf-8")

    def look(self, *, mode: str = "Auto", approved: str | None = None) -> None:
        """Judge the reports."""
        if approved is not None:
            self.directory.approved_file.write_text(f"{approved}\n", encoding="utf-8")
        self.replanning = replanning(self.directory, self.notes.append, clock=lambda: NOW, mode=mode)
        self.replanning.look()

    @property
    def record(self) -> ReplanningStatus:
        """The record in the folder."""
        return ReplanningStatus.model_validate_json(self.directory.replanning_file.read_text(encoding="utf-8"))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """A training of its own folder; a planner that it started is stopped."""
    made = Training(tmp_path)
    yield made
    if made.replanning is not None:
        made.replanning.stop()


def test_a_candidate_is_recorded_as_accepted_once_the_training_has_stopped(training: Training) -> None:
    """Plan and record change together: a run that is killed before trains on under the plan that it says."""
    training.candidate(incumbent=training.plan_hash)
    candidate = training.directory.candidate_file.read_bytes()
    with pytest.raises(PlanTakenError):
        training.look()
    assert (training.record.accepted, file_digest(training.directory.plan_file)) == (None, training.plan_hash)
    assert training.replanning is not None
    training.replanning.accept()

    assert (training.record.accepted, training.record.replans, training.record.candidate) == (1, 1, None)
    assert training.directory.plan_file.read_bytes() == candidate
    assert [each.reason for each in training.record.history] == ["PlanWritten", "InputsDrifted"]


def test_a_training_that_fails_under_an_accepted_candidate_goes_back(training: Training) -> None:
    """Once: the plan before is not given up, and a run that is killed in between goes back when it starts again."""
    training.candidate(incumbent=training.plan_hash)
    with pytest.raises(PlanTakenError):
        training.look()
    assert training.replanning is not None
    training.replanning.accept()
    accepted = training.directory.plan_file.read_bytes()
    record = training.replanning.in_doubt
    assert record is not None
    before = with_plan_before(record, message="out of memory", now=NOW)
    assert before is not None
    training.replanning.restore(before)
    assert training.replanning.in_doubt is None
    shutil.copyfile(training.directory.plan_file, training.directory.plan_before_file)
    training.directory.plan_file.write_bytes(accepted)

    assert [each.reason for each in training.record.history] == ["PlanWritten", "InputsDrifted", "PlanFailed"]
    assert training.record.accepted is None
    assert put_accepted_in_place(training.directory)
    assert file_digest(training.directory.plan_file) == training.plan_hash


def test_a_candidate_near_another_plan_is_made_again(training: Training) -> None:
    """It is of other tables, or of an earlier training in this folder."""
    training.candidate(incumbent="a" * 64)
    training.look()

    assert training.directory.log("replan").exists()
    assert (training.record.candidates, training.record.accepted) == (1, None)
    assert file_digest(training.directory.plan_file) == training.plan_hash


def test_a_candidate_for_another_change_is_not_taken(training: Training) -> None:
    """Within the cooldown no other one is made either."""
    training.candidate(incumbent=training.plan_hash, since_step=600)
    training.look()

    assert (training.record.candidates, training.record.accepted) == (1, None)
    assert training.record.candidate is not None
    assert training.record.candidate.verdict is None


def test_a_candidate_whose_planner_was_interrupted_is_made_again(training: Training) -> None:
    """It has neither a verdict nor a file; the job has asked for one candidate."""
    training.asked()
    training.look()

    assert training.directory.log("replan").exists()
    assert training.record.candidates == 1


def test_a_candidate_that_was_suggested_is_taken_once_the_user_approves_it(training: Training) -> None:
    """The note says how; another plan's name approves nothing."""
    training.candidate(incumbent=training.plan_hash)
    training.look(mode="Suggest")
    shown = shown_candidate(training.directory)
    training.look(mode="Suggest", approved="another")

    assert training.record.candidate is not None
    assert (training.record.candidate.verdict, training.record.candidate.plan_name) == ("BetterPlanFound", shown)
    assert any(f"to take it: run `neuroshard approve {training.directory.path}`" in note for note in training.notes)
    with pytest.raises(PlanTakenError):
        training.look(mode="Suggest", approved=shown)


def test_the_record_of_further_plans_goes_with_its_training(training: Training, tmp_path: Path) -> None:
    """Another training in this folder begins with none."""
    training.candidate(incumbent=training.plan_hash)
    aside = tmp_path / "train.1"
    aside.mkdir()
    training.directory.move_further_plans(aside)

    assert sorted(path.name for path in aside.iterdir()) == ["candidate.json", "replanning.json"]
    assert not training.directory.replanning_file.exists()
    assert not training.directory.candidate_file.exists()


def test_inputs_that_were_counted_under_another_plan_are_not_planned_for(training: Training) -> None:
    """The training writes them again; until then no planner starts."""
    file = training.directory.train_dir / "input-statistics.json"
    file.write_text(training_builders.input_statistics(plan_sha256="7" * 64).to_json(), encoding="utf-8")
    training.look()
    before = training.directory.replanning_file.exists()
    file.write_text(training_builders.input_statistics(plan_sha256=training.plan_hash).to_json(), encoding="utf-8")
    training.look()

    assert (before, training.record.candidates) == (False, 1)

"""What holds in every history of further plans on one machine, whenever the command is killed and given again."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.documents.plan import IncumbentPlan, Plan
from neuroshard_api.job.replanning import ReplanningStatus
from neuroshard_api.replanning.record import with_plan_before
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.replanning import LocalReplanning, PlanTakenError, put_accepted_in_place, shown_candidate
from support import builders
from support.cli.local_candidates import replanning
from support.depth import depth
from support.trainer import training_builders

START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_REPLANS = 2
SLOW = 4.0
"""Of a step after a change, in steps before it."""
EVIDENCE = (Evidence(part=StepPart.COMPUTE, rank=0, reference_ms=1.0, recent_ms=2.0),)


class FakePlanner:
    """A planner's process that ends when the test says so."""

    def __init__(self, command: Sequence[str]) -> None:
        self.out = Path(command[command.index("--out") + 1])
        self.status: int | None = None
        self.is_killed = False

    def poll(self) -> int | None:
        """Return the exit status."""
        return self.status

    def kill(self) -> None:
        """End it."""
        self.is_killed = True

    def wait(self) -> int:
        """Return the exit status after a kill."""
        return -9


class Histories(RuleBasedStateMachine):
    """Every order of reports, planners that end, failures of the training, approvals, and kills of the command."""

    def __init__(self) -> None:
        """Begin with a run that is planned."""
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.directory = RunDirectory(self.folder)
        self.directory.train_dir.mkdir()
        self.directory.log("replan").parent.mkdir()
        self.first = builders.plan(builders.request(*builders.tables(4)))
        self.directory.plan_file.write_text(self.first.to_json(), encoding="utf-8")
        os.utime(self.directory.plan_file, (START.timestamp(), START.timestamp()))
        self.now, self.step, self.version = START, 5_000, 0
        self.planners: list[FakePlanner] = []
        self.before = ReplanningStatus()
        self.approved = ""
        self.mode = "Auto"

    def teardown(self) -> None:
        """Leave no folder."""
        shutil.rmtree(self.folder)

    @initialize(mode=st.sampled_from(["Auto", "Suggest"]))
    def begin(self, mode: str) -> None:
        """The command is given."""
        self.mode = mode
        self.resume()

    def resume(self) -> None:
        """Begin, or go on from what is in the folder."""
        self.further: LocalReplanning = replanning(
            self.directory,
            lambda _: None,
            clock=lambda: self.now,
            mode=self.mode,
            launch=self.launch,
            max_replans=MAX_REPLANS,
        )

    def launch(self, command: Sequence[str], directory: RunDirectory) -> FakePlanner:
        """Start a planner."""
        assert directory is self.directory
        self.planners.append(FakePlanner(command))
        return self.planners[-1]

    @rule(is_slow=st.booleans(), since=st.sampled_from([4_000, 4_500]), minutes=st.sampled_from([1, 40, 600]))
    def report(self, *, is_slow: bool, since: int, minutes: int) -> None:
        """The training reports steps under the plan in force, and the command looks."""
        self.now += timedelta(minutes=minutes)
        self.step += 2_000
        plan = file_digest(self.directory.plan_file) or ""
        price_ms = Plan.read(self.directory.plan_file).predicted.total_ms
        before, after = (
            tuple(
                builders.rank_times(
                    rank,
                    forward_compute_ms=ms,
                    backward_compute_ms=0.0,
                    input_communication_ms=0.0,
                    forward_communication_ms=0.0,
                    backward_communication_ms=0.0,
                    step_ms=ms + 1.0,
                )
                for rank in (0, 1)
            )
            for ms in (price_ms, SLOW * price_ms if is_slow else price_ms)
        )
        change = DriftChange(cause=SlowdownCause.INPUTS_DRIFTED, tables=("t0",), since_step=since, evidence=EVIDENCE)
        documents = {
            "progress.json": builders.progress(step=self.step, num_steps=10**8),
            "step-report.json": builders.step_report(plan_sha256=plan, ranks=after, first_step=self.step - 100),
            "input-statistics.json": training_builders.input_statistics(plan_sha256=plan),
            "drift-report.json": training_builders.drift_report(
                plan_sha256=plan,
                last_step=self.step,
                reference=before,
                recent=after,
                changes=(change,) if is_slow else (),
                checkpoint_ms=1.0,
                start_ms=1.0,
            ),
        }
        for name, document in documents.items():
            file = self.directory.train_dir / name
            file.unlink(missing_ok=True)
            file.write_text(document.to_json(), encoding="utf-8")
        self.look()

    @rule(code=st.sampled_from([0, 0, 0, 1, 3, -9]), gain=st.sampled_from([0.9, 3.0]))
    def planner_ends(self, code: int, gain: float) -> None:
        """The planner that runs, if one does, ends with a plan or without."""
        running = [each for each in self.planners if each.status is None and not each.is_killed]
        for planner in running:
            planner.status = code
            self.directory.log("replan").write_text("error: no plan fits" if code else "", encoding="utf-8")
            if code == 0:
                planner.out.write_text(self.candidate(gain).to_json(), encoding="utf-8")
        self.look()

    def candidate(self, gain: float) -> Plan:
        """Return the plan in force with its tables in reversed places, faster by a factor."""
        in_force = Plan.read(self.directory.plan_file)
        shards = [table.shards for table in reversed(in_force.tables)]
        turned = tuple(
            table.model_copy(update={"shards": each}) for table, each in zip(in_force.tables, shards, strict=True)
        )
        near = IncumbentPlan(
            plan_sha256=file_digest(self.directory.plan_file) or "",
            total_ms=gain * in_force.predicted.total_ms,
            fits=True,
        )
        self.version += 1  # no two plans of a history have the same bytes
        seeded = in_force.request.search.model_copy(update={"seed": self.version})
        request = in_force.request.model_copy(update={"search": seeded})
        return in_force.model_copy(update={"tables": turned, "incumbent": near, "request": request})

    def look(self) -> None:
        """Let the command look; a candidate that is taken is put in place, as after the training has stopped."""
        try:
            self.further.look()
        except PlanTakenError:
            self.further.stop()
            self.further.accept()
            self.resume()

    @rule()
    def all_goes_as_it_should(self) -> None:
        """Inputs drift, a plan that pays is made for them, and steps are as fast as before under it."""
        self.report(is_slow=True, since=4_000, minutes=600)
        self.planner_ends(code=0, gain=3.0)
        self.report(is_slow=False, since=4_000, minutes=1)

    @rule()
    def training_fails(self) -> None:
        """All workers fail, and start again: under the plan before, where the newest was not measured yet."""
        self.further.stop()
        if (record := self.further.in_doubt) is not None:
            before = with_plan_before(record, message="out of memory", now=self.now)
            assert before is not None, "it is in doubt"
            self.further.restore(before)
        self.resume()

    @rule(approves=st.booleans())
    def command_is_killed(self, *, approves: bool) -> None:
        """The command and its planner are killed; the user gives it again, and may have approved the candidate."""
        for planner in self.planners:
            planner.is_killed = True
        self.approved = (shown_candidate(self.directory) if approves else None) or ""
        self.directory.approved_file.write_text(self.approved, encoding="utf-8")
        put_accepted_in_place(self.directory)
        self.resume()

    @invariant()
    def at_most_one_planner_runs(self) -> None:
        """Training goes first: never do two searches run next to it."""
        assert sum(each.status is None and not each.is_killed for each in self.planners) <= 1

    @invariant()
    def the_plan_in_force_is_the_one_of_the_record(self) -> None:
        """Whatever was taken or given up."""
        history = self.record.history
        assert not history or f"sha256:{file_digest(self.directory.plan_file)}" == history[-1].hash

    @invariant()
    def the_record_only_grows(self) -> None:
        """Candidates and restarts are never lost, and no more are taken by themselves than the job permits."""
        now, before = self.record, self.before
        assert (now.candidates or 0) - (before.candidates or 0) in {0, 1}
        assert (now.replans or 0) - (before.replans or 0) in {0, 1}
        if now.replans != before.replans and not self.approved:
            assert self.mode == "Auto"
            assert (now.replans or 0) <= MAX_REPLANS
        self.before = now

    @property
    def record(self) -> ReplanningStatus:
        """The record in the folder."""
        file = self.directory.replanning_file
        return ReplanningStatus.model_validate_json(file.read_text(encoding="utf-8")) if file.exists() else self.before


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_invariants_hold_in_every_history_of_further_plans() -> None:
    """In every order of reports, ends of planners, failures, approvals, and kills."""
    run_state_machine_as_test(Histories, settings=settings(max_examples=depth(10, 80), stateful_step_count=25))

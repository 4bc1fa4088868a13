"""What holds in every history of a job on one machine, whenever the command is killed and given again."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from neuroshard_api.job.replanning import ReplanningStatus
from neuroshard_api.replanning.record import suggested_plan
from neuroshard_cli.local.directory import file_digest
from support.cli.local_life import OWN, local_life
from support.depth import depth

MAX_REPLANS = 2
MAX_RESTARTS = 3


class Histories(RuleBasedStateMachine):
    """Every order of reports, processes that end, approvals, suspensions, and kills of the command."""

    def __init__(self) -> None:
        """Begin with an empty folder."""
        super().__init__()
        self.folder, self.stack = Path(tempfile.mkdtemp()), ExitStack()
        self.before, self.approved, self.mode = ReplanningStatus(), "", "Auto"

    def teardown(self) -> None:
        """Leave no folder."""
        self.stack.close()
        shutil.rmtree(self.folder)

    @initialize(mode=st.sampled_from(["Auto", "Suggest"]))
    def begin(self, mode: str) -> None:
        """The command is given."""
        self.mode = mode
        spec = {
            "trainer": OWN,
            "replanning": {"mode": mode, "maxReplans": MAX_REPLANS},
            "failurePolicy": {"maxRestarts": MAX_RESTARTS},
        }
        self.life = self.stack.enter_context(local_life(self.folder, **spec))
        self.life.begin()

    @rule(code=st.sampled_from([0, 0, 0, 3]))
    def planner_ends(self, code: int) -> None:
        """The first planner ends with a plan or without."""
        if self.life.running("plan") and code == 0:
            self.life.plan()
        self.life.end("plan", code)

    @rule(is_slow=st.booleans(), since=st.sampled_from([4_000, 4_500]), minutes=st.sampled_from([1, 40, 600]))
    def report(self, *, is_slow: bool, since: int, minutes: int) -> None:
        """The training reports steps under the plan in force."""
        self.life.wait(60.0 * minutes)
        if self.life.running("train"):
            self.life.report(is_slow=is_slow, since=since)

    @rule(code=st.sampled_from([0, 0, 0, 1, 3, -9]), gain=st.sampled_from([0.9, 3.0]))
    def planner_of_a_candidate_ends(self, code: int, gain: float) -> None:
        """The planner next to the training ends with a plan or without."""
        if code == 0:
            self.life.plan_further(gain=gain)
        self.life.end("replan", code)

    @rule()
    def all_goes_as_it_should(self) -> None:
        """Inputs drift, a plan that pays is made for them, and steps are as fast as before under it."""
        self.planner_ends(code=0)
        self.report(is_slow=True, since=4_000, minutes=600)
        self.planner_of_a_candidate_ends(code=0, gain=3.0)
        self.report(is_slow=False, since=4_000, minutes=1)

    @rule(code=st.sampled_from([0, 1, 7, 143]))
    def training_ends(self, code: int) -> None:
        """The trainer ends, well or not."""
        self.life.end("train", code)

    @rule()
    def command_is_suspended(self) -> None:
        """Ctrl-Z, and `fg`."""
        if not self.life.local.has_ended:
            self.life.local.suspend()
            self.life.settle()

    @rule(approves=st.booleans())
    def command_is_killed(self, *, approves: bool) -> None:
        """The command and its processes are killed; the user gives it again, and may have approved the candidate."""
        self.approved = (suggested_plan(self.record) if approves else None) or ""
        self.life.directory.approved_file.write_text(self.approved, encoding="utf-8")
        self.life.begin()

    @invariant()
    def at_most_one_of_each_kind_runs(self) -> None:
        """Training goes first: never do two searches run next to it, nor two trainings at all."""
        for kinds in (("plan", "replan"), ("plan", "train")):
            assert sum(len(self.life.running(each)) for each in kinds) <= 1

    @invariant()
    def the_plan_that_is_trained_under_is_the_one_of_the_record(self) -> None:
        """Whatever was taken or given up."""
        history, digest = self.record.history, f"sha256:{file_digest(self.life.directory.plan_file)}"
        assert not history or not self.life.running("train") or digest == history[-1].hash

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

    @invariant()
    def restarts_stay_within_the_maximum(self) -> None:
        """As in a cluster."""
        assert (self.life.status.restarts_count_towards_max or 0) <= MAX_RESTARTS

    @property
    def record(self) -> ReplanningStatus:
        """The record in the folder."""
        return self.life.status.replanning or ReplanningStatus()


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_invariants_hold_in_every_history_of_a_local_run() -> None:
    """In every order of reports, ends of processes, approvals, suspensions, and kills."""
    run_state_machine_as_test(Histories, settings=settings(max_examples=depth(10, 80), stateful_step_count=25))

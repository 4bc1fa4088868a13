"""A further plan for a training on this machine: made at low priority while it trains, judged, and taken in mode Auto.

The facts and the rule are the operator's; the record is ``replanning.json`` in the run directory.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.stage_process import MARK_VARIABLE
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.drift_report import DriftChange, DriftReport
    from neuroshard_api.documents.plan import GivenPlan, Plan
    from neuroshard_api.documents.step_report import StepReport
    from neuroshard_api.job.replanning import CandidatePlan, Replanning, ReplanningStatus
    from neuroshard_api.job.status import MeasuredCost
    from neuroshard_api.replanning.decision import ReplanDecision, Restart

LOWEST_PRIORITY = 19
"""Of the planner's process: training goes first."""
DAMAGED_HINT = (
    "further plans need their record; hint: move the file away, which forgets earlier plans and restarts and keeps "
    "plan and checkpoints, "
    "or set spec.replanning.mode to Off, which does without it"
)


class PlanTakenError(Exception):
    """The training is to stop, and to restart once `LocalReplanning.accept` put the candidate in place."""


class LocalReplanning:
    """Further plans of one training.

    Raises DocumentError where the record cannot be read.

    Args:
        directory: of the run; its request and plan were made before.
        policy: of the job.
        bundle_dir: the cost models of the plan.
        has_dense: whether the dense part was counted for the plan.
        clock: the present time, with its zone.
        note: called with each decision, as a sentence.
    """

    def __init__(
        self,
        directory: RunDirectory,
        policy: "Replanning",
        *,
        bundle_dir: Path,
        has_dense: bool,
        clock: Callable[[], datetime],
        note: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._policy = policy
        self._bundle_dir = bundle_dir
        self._has_dense = has_dense
        self._clock = clock
        self._note = note
        self._planner: subprocess.Popen[bytes] | None = None
        self._accepted: ReplanningStatus | None = None
        """The record once the candidate is in place. None: it is not to be taken."""
        self._seen: tuple[int | None, ...] = ()
        """Versions of the reports that were judged."""
        self._unsupported_step: int | None = None
        """First step of the last change that no candidate is made for. None: there was none."""
        self._record = _recorded(directory)

    def look(self) -> None:
        """Make, follow, and judge a candidate, as the reports of the training ask for. Returns at once.

        Raises:
            PlanTakenError: the candidate pays, and the mode is Auto.
        """
        from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, STEP_REPORT_FILE

        if self._planner is not None:
            status = self._planner.poll()
            if status is None:
                return
            self._planner, self._seen = None, ()
            if status or not self._directory.candidate_file.exists():
                self._failed(f"the planner ended with exit code {status}")
        seen = tuple(_version(self._directory.train_dir / name) for name in (DRIFT_REPORT_FILE, STEP_REPORT_FILE))
        if seen == self._seen or None in seen:
            return
        drift, steps = self._reports()
        if drift is None or steps is None:
            return
        self._seen = seen
        self._follow(drift, steps)

    def accept(self) -> None:
        """Record the candidate that was decided on, and put it in the place of the plan. The training has stopped.

        The record comes first: a start after a kill in between puts the recorded plan in its place.
        """
        assert self._accepted is not None, "PlanTakenError was raised before"
        self._keep(self._accepted)
        is_in_place = put_accepted_in_place(self._directory)
        assert is_in_place, "the record names the candidate's file"

    def take_back(self, why: str) -> bool:
        """Put the plan before in the place of one that was taken and under which the training failed.

        Returns False, and changes nothing, where the plan is the first one, or was measured, and so trains.
        """
        from neuroshard_api.replanning.record import with_plan_before

        history = self._record.history
        if not history or history[-1].hash != f"sha256:{file_digest(self._directory.plan_file)}":
            return False  # a failure rule has had another plan made since
        before = with_plan_before(self._record, message=why, now=self._clock())
        file = self._directory.plan_before_file
        if before is None or f"sha256:{file_digest(file)}" != before.history[-1].hash:
            return False
        self._keep(before)
        return put_accepted_in_place(self._directory)

    def stop(self) -> None:
        """End the planner, if it still runs: the training has ended."""
        if self._planner is not None:
            self._planner.kill()
            self._planner.wait()
            self._planner = None

    def _reports(self) -> "tuple[DriftReport | None, StepReport | None]":
        """Return the reports of the plan in force; None: there is none, or it cannot be read."""
        from neuroshard_api.documents.document import DocumentError
        from neuroshard_api.documents.drift_report import DriftReport
        from neuroshard_api.documents.step_report import StepReport
        from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, STEP_REPORT_FILE

        folder, plan = self._directory.train_dir, file_digest(self._directory.plan_file)
        try:
            drift = DriftReport.read(folder / DRIFT_REPORT_FILE)
            steps = StepReport.read(folder / STEP_REPORT_FILE)
        except DocumentError:
            return None, None
        return (drift, steps) if drift.plan_sha256 == steps.plan_sha256 == plan else (None, None)

    def _follow(self, drift: "DriftReport", steps: "StepReport") -> None:
        from neuroshard_api.documents.drift_report import SlowdownCause, first_change
        from neuroshard_api.job.step_cost import is_host_bound, measured_cost
        from neuroshard_api.replanning.record import with_measured_gain

        measured = measured_cost(steps)
        self._keep(
            with_measured_gain(
                self._record,
                plan_hash=f"sha256:{drift.plan_sha256}",
                measured_us=None if is_host_bound(measured) else measured.total_microseconds,
                steps=measured.steps,
            )
        )
        change = first_change(drift.changes, SlowdownCause.INPUTS_DRIFTED)
        if change is None:
            return
        candidate = self._record.candidate
        has_file = self._directory.candidate_file.exists()
        is_interrupted = candidate is not None and candidate.verdict is None and not has_file
        if candidate is None or is_interrupted or self._is_due(candidate, change):
            self._ask(change)
        elif has_file and candidate.since_step == change.since_step:
            self._judge(candidate, change, drift, measured)

    def _is_due(self, candidate: "CandidatePlan", change: "DriftChange") -> bool:
        from neuroshard_api.replanning.record import is_candidate_due

        return is_candidate_due(candidate, since_step=change.since_step, now=self._clock())

    def _ask(self, change: "DriftChange") -> None:
        """Begin to plan for the inputs as they are now, where a plan can be made for what changed."""
        from neuroshard_api.documents.document import DocumentError
        from neuroshard_api.documents.input_statistics import InputStatistics
        from neuroshard_api.job.stage_commands import INPUT_STATISTICS_FILE, planner_command
        from neuroshard_api.replanning.record import with_candidate_asked
        from neuroshard_api.replanning.support import CANDIDATE_UNSUPPORTED, unsupported_inputs

        directory = self._directory
        statistics = directory.train_dir / INPUT_STATISTICS_FILE
        if not statistics.exists():
            return
        try:
            inputs = InputStatistics.read(statistics)
        except DocumentError:  # the planner names what is wrong with it
            why = None
        else:
            if inputs.plan_sha256 != file_digest(directory.plan_file):
                return  # of the plan before; the trainer writes them again
            why = unsupported_inputs(inputs)
        if why is not None:
            if self._unsupported_step != change.since_step:
                self._note(f"{CANDIDATE_UNSUPPORTED}: inputs drifted since step {change.since_step:,}, but {why}")
            self._unsupported_step = change.since_step
            return
        directory.candidate_file.unlink(missing_ok=True)
        shutil.copyfile(statistics, directory.inputs_file)
        self._keep(with_candidate_asked(self._record, since_step=change.since_step, now=self._clock()))
        command = planner_command(
            request_file=str(directory.request_file),
            bundle_dir=str(self._bundle_dir),
            plan_file=str(directory.candidate_file),
            dense_file=str(directory.dense_file) if self._has_dense else None,
            statistics_file=str(directory.inputs_file),
            incumbent_file=str(directory.plan_file),
            python=sys.executable,
        )
        with directory.log("replan").open("wb") as log:
            self._planner = subprocess.Popen(  # noqa: S603 - the planner's command
                command,
                env={**os.environ, MARK_VARIABLE: str(directory.path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.setpriority(os.PRIO_PROCESS, self._planner.pid, LOWEST_PRIORITY)
        self._note(f"inputs drifted since step {change.since_step:,}; another plan is made")

    def _judge(
        self, candidate: "CandidatePlan", change: "DriftChange", drift: "DriftReport", measured: "MeasuredCost"
    ) -> None:
        """Decide about the candidate; one that is for another plan in force is made again.

        Raises:
            PlanTakenError: it is taken.
        """
        from neuroshard_api.documents.document import DocumentError
        from neuroshard_api.documents.plan import Plan
        from neuroshard_api.job.step_cost import embedding_ms, is_host_bound
        from neuroshard_api.replanning.decision import decide
        from neuroshard_api.replanning.record import judged, next_to_plan_in_force

        try:
            plan = Plan.read(self._directory.candidate_file)
        except DocumentError as error:
            self._failed(str(error))
            return
        if plan.incumbent is None or plan.incumbent.plan_sha256 != drift.plan_sha256:
            self._ask(change)
            return
        measured_us = measured.total_microseconds
        if not measured_us:
            return
        decision = decide(
            next_to_plan_in_force(
                self._record,
                placement_hash=plan.placement_sha256,
                in_force_hash=self._plan_in_force().placement_sha256,
                measured_us=measured_us,
                predicted_ms=plan.predicted.total_ms,
                incumbent_ms=plan.incumbent.total_ms,
                reference_ms=embedding_ms(drift.reference),
                planned_ms=self._planned_ms(),
                is_host_bound=is_host_bound(measured),
            ),
            self._restart(drift),
            self._policy,
        )
        is_new = candidate.verdict != decision.verdict.value
        priced = judged(
            candidate, decision, total_ms=plan.predicted.total_ms, incumbent_ms=plan.incumbent.total_ms
        ).model_copy(
            update={
                "hash": f"sha256:{file_digest(self._directory.candidate_file)}",
                "verdict": decision.verdict.value,
                "message": decision.message,
            }
        )
        if decision.acts:
            self._take(plan, priced, decision, drift, measured_us)
        if is_new:
            self._keep(self._record.model_copy(update={"candidate": priced}))
            self._note(f"{decision.verdict.value}: {decision.message}")

    def _restart(self, drift: "DriftReport") -> "Restart":
        from neuroshard_api.documents.document import DocumentError
        from neuroshard_api.documents.progress import TrainingProgress
        from neuroshard_api.job.stage_commands import PROGRESS_FILE
        from neuroshard_api.replanning.decision import Restart
        from neuroshard_api.replanning.record import outcomes_of, since_replan_s

        try:
            num_steps = TrainingProgress.read(self._directory.train_dir / PROGRESS_FILE).num_steps
        except DocumentError:
            num_steps = None
        return Restart(
            step_ms=max(times.step_ms for times in drift.recent),
            step=drift.last_step,
            num_steps=num_steps,
            checkpoint_ms=drift.checkpoint_ms,
            start_ms=drift.start_ms,
            replans=self._record.replans or 0,
            since_replan_s=since_replan_s(self._record, self._clock()),
            outcomes=outcomes_of(self._record, f"sha256:{drift.plan_sha256}"),
        )

    def _take(
        self,
        plan: "Plan",
        candidate: "CandidatePlan",
        decision: "ReplanDecision",
        drift: "DriftReport",
        measured_us: int,
    ) -> None:
        """Decide that the candidate takes the place of the plan. Raises PlanTakenError, always."""
        from neuroshard_api.job.replanning import TrainedPlan
        from neuroshard_api.replanning.record import US_PER_MS, with_candidate_taken

        now, before = self._clock(), self._plan_in_force()
        in_force = TrainedPlan(
            hash=f"sha256:{drift.plan_sha256}",
            placement_hash=before.placement_sha256,
            reason="PlanWritten",
            start_time=datetime.fromtimestamp(self._directory.plan_file.stat().st_mtime, UTC),
            predicted_microseconds=None if before.predicted is None else round(US_PER_MS * before.predicted.total_ms),
        )
        self._accepted = with_candidate_taken(
            self._record,
            candidate,
            decision,
            placement_hash=plan.placement_sha256,
            in_force=in_force,
            measured_us=measured_us,
            message=decision.message,
            from_step=drift.last_step,
            now=now,
        )
        raise PlanTakenError(decision.message)

    def _plan_in_force(self) -> "GivenPlan":
        from neuroshard_api.documents.document import read_data
        from neuroshard_api.documents.plan import any_plan

        file = self._directory.plan_file
        return any_plan(read_data(file), where=str(file))

    def _planned_ms(self) -> float | None:
        """Return the price of the plan in force for the inputs that it was made for. None: it has none."""
        predicted = self._plan_in_force().predicted
        return None if predicted is None else predicted.total_ms

    def _failed(self, why: str) -> None:
        from neuroshard_api.replanning.record import CANDIDATE_FAILED, MESSAGE_CHARACTERS

        candidate = self._record.candidate
        if candidate is not None:
            update = {"verdict": CANDIDATE_FAILED, "message": why[:MESSAGE_CHARACTERS]}
            failed = candidate.model_copy(update=update)
            self._keep(self._record.model_copy(update={"candidate": failed}))
        self._note(f"no plan was made for the changed inputs: {why}; its log is {self._directory.log('replan')}")

    def _keep(self, record: "ReplanningStatus") -> None:
        if record != self._record:
            self._record = record
            write_file(self._directory.replanning_file, record.model_dump_json(indent=1, exclude_none=True) + "\n")


def put_accepted_in_place(directory: RunDirectory) -> bool:
    """Put the plan that the run's record has last in the place of the plan, where it is not there yet.

    That is an accepted candidate, whose predecessor is kept, or a predecessor that is taken again. Returns whether the
    plan is of the record. Raises DocumentError where the record cannot be read.
    """
    record = _recorded(directory)
    if not record.history:
        return False
    in_force = record.history[-1].hash
    if f"sha256:{file_digest(directory.candidate_file)}" == in_force:
        shutil.copyfile(directory.plan_file, directory.plan_before_file)
        directory.candidate_file.replace(directory.plan_file)
    elif f"sha256:{file_digest(directory.plan_before_file)}" == in_force:
        directory.plan_before_file.replace(directory.plan_file)
    return f"sha256:{file_digest(directory.plan_file)}" == in_force


def _recorded(directory: RunDirectory) -> "ReplanningStatus":
    """Return the run's record of further plans; an empty one where there is none. Raises DocumentError."""
    from neuroshard_api.documents.document import MAX_PROBLEMS_SHOWN, DocumentError, read_data, validated
    from neuroshard_api.job.replanning import ReplanningStatus

    file = directory.replanning_file
    try:
        return validated(ReplanningStatus, read_data(file) if file.exists() else {}, where=str(file))
    except DocumentError as error:
        raise DocumentError(error.where, [*error.problems[: MAX_PROBLEMS_SHOWN - 1], DAMAGED_HINT]) from error


def _version(path: Path) -> int | None:
    """Return a version that changes with each new file of that name. None: there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None

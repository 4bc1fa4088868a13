"""Further plans of a training on this machine: decided as in a cluster, made at low priority next to the training.

The record, which a cluster has in the job's status, is ``replanning.json`` in the run directory.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from neuroshard_cli.local.children import Children, plan_document, report_document
from neuroshard_cli.local.directory import RunDirectory, file_digest
from neuroshard_cli.local.stage_failure import failure_of
from neuroshard_cli.local.stage_process import MARK_VARIABLE
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.job.replanning import ReplanningStatus
    from neuroshard_api.job.status import Status
    from neuroshard_decisions.actions import Action, PlannerRun
    from neuroshard_decisions.observed.results import PlanResult, ReportSummary, Unreadable
    from neuroshard_decisions.stages.result import StageResult

    Documents = dict[str, PlanResult | ReportSummary | Unreadable]

LOWEST_PRIORITY = 19
"""Of the planner's process: training goes first."""
MAX_PASSES = 10
"""At one change of the reports: a candidate is recorded, its inputs are kept, its planner starts, or it is judged."""
DAMAGED_HINT = (
    "further plans need their record; hint: move the file away, which forgets earlier plans and restarts and keeps "
    "plan and checkpoints, "
    "or set spec.replanning.mode to Off, which does without it"
)


class PlannerProcess(Protocol):
    """A planner's process, as `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """Return the exit status; None: it runs."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def wait(self) -> int:
        """Return the exit status once it has ended."""
        ...


class PlanTakenError(Exception):
    """The training is to stop, and to restart once `LocalReplanning.accept` put the candidate in place."""


class LocalReplanning:
    """Further plans of one training.

    Raises DocumentError where the record cannot be read.

    Args:
        directory: of the run; its plan was made before.
        children: of the run; its planners are added.
        bundle_dir: the cost models of the plan.
        has_dense: whether the dense part was counted for the plan.
        replans: how often a failure rule asked for another plan.
        note: called with each decision, as a sentence.
        launch: starts a planner's command. If unset: as a process of this machine.
    """

    def __init__(
        self,
        directory: RunDirectory,
        children: Children,
        *,
        bundle_dir: Path,
        has_dense: bool,
        replans: int = 0,
        note: Callable[[str], None],
        launch: "Callable[[Sequence[str], RunDirectory], PlannerProcess] | None" = None,
    ) -> None:
        self._directory = directory
        self._children = children
        self._bundle_dir = bundle_dir
        self._has_dense = has_dense
        self._replans = replans
        self._note = note
        self._launch = launch or _process
        self._run: PlannerRun | None = None
        self._planner: PlannerProcess | None = None
        self._inputs_of: int | None = None
        """Number of the candidate that the kept inputs are for. None: they are not kept for this training."""
        self._accepted: ReplanningStatus | None = None
        """The record once the candidate is in place. None: it is not to be taken."""
        self._seen: tuple[int | None, ...] = ()
        """Versions of the reports, and of the approval, that were decided on."""
        self._noted = ""
        self._record = _recorded(directory)

    def look(self) -> None:
        """Make, follow, and judge a candidate, as the reports of the training ask for. Returns at once.

        Raises:
            PlanTakenError: the candidate is to be taken.
        """
        from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, STEP_REPORT_FILE

        if self._planner is not None:
            status = self._planner.poll()
            if status is None:
                return
            self._ended(status)
        reports = [self._directory.train_dir / name for name in (DRIFT_REPORT_FILE, STEP_REPORT_FILE)]
        seen = tuple(map(_version, (*reports, self._directory.approved_file)))
        if seen == self._seen or None in seen[:-1]:
            return
        for _ in range(MAX_PASSES):
            if not self._pass():
                break
        self._seen = seen

    def accept(self) -> None:
        """Record the candidate that was decided on, and put it in the place of the plan. The training has stopped.

        The record comes first: a start after a kill in between puts the recorded plan in its place.
        """
        assert self._accepted is not None, "PlanTakenError was raised before"
        self._keep(self._accepted)
        is_in_place = put_accepted_in_place(self._directory)
        assert is_in_place, "the record names the candidate's file"

    @property
    def in_doubt(self) -> "ReplanningStatus | None":
        """The record, where the plan before the newest one is kept and may take its place again. None: it may not."""
        from neuroshard_api.replanning.record import with_plan_before

        history = self._record.history
        if not history or history[-1].hash != f"sha256:{file_digest(self._directory.plan_file)}":
            return None  # a failure rule has had another plan made since
        before = with_plan_before(self._record, message="", now=self._children.now)
        kept = f"sha256:{file_digest(self._directory.plan_before_file)}"
        return self._record if before is not None and before.history[-1].hash == kept else None

    def restore(self, record: "ReplanningStatus") -> None:
        """Put the plan before in the place of the one that was given up, as a record says."""
        self._keep(record)
        is_in_place = put_accepted_in_place(self._directory)
        assert is_in_place, "it was kept"

    def stop(self) -> None:
        """End the planner, if it still runs: the training has ended."""
        if self._planner is not None:
            self._planner.kill()
            self._planner.wait()
            self._forget_planner()

    def _pass(self) -> bool:
        """Decide once, and do what was decided; return whether another pass may follow at once.

        Raises:
            PlanTakenError: the candidate is to be taken.
        """
        from neuroshard_decisions import names
        from neuroshard_decisions.observed.objects import ChildJob, Meta
        from neuroshard_decisions.observed.results import PlanResult
        from neuroshard_decisions.stages.drift import drift_of
        from neuroshard_decisions.stages.planning import Planned
        from neuroshard_decisions.stages.replanning import replan
        from neuroshard_decisions.stages.training import TrainingWorkers

        plan, report = plan_document(self._directory.plan_file), report_document(self._directory)
        if not isinstance(plan, PlanResult) or report is None or report.plan_hash != plan.hash:
            return False
        job = self._children.job.metadata.name
        planned = Planned(summary=plan, name=names.plan(job, plan.hash), is_kept=True)
        context = self._children.context(self._status(plan, report), self._documents(plan, report))
        workers = ChildJob(meta=Meta(name=names.worker_job(job, 0)), role=names.WORKER)
        training = TrainingWorkers(context=context, planned=planned, workers=workers, drift=drift_of(context, planned))
        step = replan(training, candidate_hash=self._candidate_hash())
        recorded = step.status_fields.get("replanning", self._record)
        assert isinstance(recorded, type(self._record)), "the field's type"
        if recorded.accepted is not None and recorded.accepted != self._record.accepted:
            self._accepted = recorded
            raise PlanTakenError(recorded.history[-1].message)
        self._tell(step)
        is_other = recorded != self._record
        self._keep(recorded)
        for action in step.actions:
            self._do(action)
        return self._planner is None and (is_other or bool(step.actions))

    def _status(self, plan: "PlanResult", report: "ReportSummary") -> "Status":
        """Return the status of a job that trains, as far as further plans depend on it."""
        from neuroshard_api.job.status import Cost, StageName, StageState, StageStatus, Status

        made = datetime.fromtimestamp(self._directory.plan_file.stat().st_mtime, UTC)
        ready = StageStatus(name=StageName.LAUNCHING, state=StageState.SUCCEEDED, completion_time=made)
        return Status(
            cost=Cost(predicted=plan.predicted, measured=report.measured),
            replanning=self._record,
            replans=self._replans,
            stages=(ready,),
        )

    def _documents(self, plan: "PlanResult", report: "ReportSummary") -> "Documents":
        """Return the documents that decisions about further plans need, by their names."""
        from neuroshard_decisions import names
        from neuroshard_decisions.observed.results import PlanResult

        job, candidate, name = self._children.job.metadata.name, self._record.candidate, self._candidate_hash()
        found: Documents = {names.report(job): report}
        if candidate is None or name is None:
            return found
        if self._inputs_of == candidate.number:
            found[names.inputs(job, candidate.number)] = report
        made = plan_document(self._directory.candidate_file)
        is_near = made.incumbent_hash == plan.hash if isinstance(made, PlanResult) else self._run is not None
        if made is not None and is_near and self._planner is None:
            found[names.result(names.planner_job(job, name))] = made
        return found

    def _candidate_hash(self) -> str | None:
        """Return the hash by which the newest candidate's planner is named. None: there is no candidate."""
        from neuroshard_decisions import names

        candidate = self._record.candidate
        return None if candidate is None else names.key_of("candidate", str(candidate.number))

    def _do(self, action: "Action") -> None:
        """Do an action, as far as one machine has something to do for it."""
        from neuroshard_decisions import names
        from neuroshard_decisions.actions import Delete, Keep, PlannerRun, Start

        match action:
            case Keep(role=names.INPUTS):
                self._keep_inputs()
            case Start(run=PlannerRun() as run):
                self._start(run)
            case Delete(name=name):
                self._children.forget(name)

    def _keep_inputs(self) -> None:
        from neuroshard_api.job.stage_commands import INPUT_STATISTICS_FILE

        shutil.copyfile(self._directory.train_dir / INPUT_STATISTICS_FILE, self._directory.inputs_file)
        self._inputs_of = None if self._record.candidate is None else self._record.candidate.number

    def _start(self, run: "PlannerRun") -> None:
        from neuroshard_api.job.stage_commands import planner_command
        from neuroshard_decisions.files import REQUEST_FILE

        directory = self._directory
        directory.candidate_file.unlink(missing_ok=True)
        write_file(directory.candidate_request_file, run.files.contents[REQUEST_FILE].decode())
        command = planner_command(
            request_file=str(directory.candidate_request_file),
            bundle_dir=str(self._bundle_dir),
            plan_file=str(directory.candidate_file),
            dense_file=str(directory.dense_file) if self._has_dense else None,
            statistics_file=str(directory.inputs_file),
            incumbent_file=str(directory.plan_file),
            python=sys.executable,
        )
        self._planner = self._launch(command, directory)
        self._run = run
        self._children.started(run)

    def _ended(self, status: int) -> None:
        """Note how the planner ended; the next pass decides what follows."""
        assert self._run is not None, "it was started"
        log = self._directory.log("replan").read_text(encoding="utf-8", errors="replace")
        failure = failure_of(status, log) if status else None
        code, tail = (0, "") if failure is None else (failure.container_code, "\n".join(failure.tail))
        self._children.ended(self._run.name, code, tail)
        self._planner, self._seen = None, ()

    def _forget_planner(self) -> None:
        if self._run is not None:
            self._children.forget(self._run.name)
        self._planner = self._run = None

    def _tell(self, step: "StageResult") -> None:
        """Note what was decided, once."""
        from neuroshard_decisions.conditions import Reason

        for found in step.conditions:
            told = f"{found.reason.value}: {found.message}"
            if found.reason is Reason.CANDIDATE_PLANNING and self._record.candidate is not None:
                told = f"inputs drifted since step {self._record.candidate.since_step:,}; another plan is made"
            elif found.reason is Reason.CANDIDATE_FAILED:
                told = f"{told}; its log is {self._directory.log('replan')}"
            if told != self._noted:
                self._note(told)
            self._noted = told

    def _keep(self, record: "ReplanningStatus") -> None:
        if record != self._record:
            self._record = record
            write_file(self._directory.replanning_file, record.model_dump_json(indent=1, exclude_none=True) + "\n")


def _process(command: Sequence[str], directory: RunDirectory) -> "subprocess.Popen[bytes]":
    """Start a planner at the lowest priority; the run's mark is in its environment."""
    with directory.log("replan").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the planner's command
            command,
            env={**os.environ, MARK_VARIABLE: str(directory.path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
    return process


def shown_candidate(directory: RunDirectory) -> str | None:
    """Return the name of the candidate that the record says how to take. None: there is none, or no such record."""
    from neuroshard_api.documents.document import DocumentError
    from neuroshard_api.replanning.record import suggested_plan

    try:
        return suggested_plan(_recorded(directory))
    except DocumentError:
        return None


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

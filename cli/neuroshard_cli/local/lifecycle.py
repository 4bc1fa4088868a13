"""The life of a local run: its status, and the attempts of its training, decided as in a cluster."""

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.local.children import Children, plan_document, report_document
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.job.replanning import ReplanningStatus
    from neuroshard_api.job.status import Status
    from neuroshard_api.job.training_job import DLRMTrainingJob
    from neuroshard_decisions.actions import Decision, WorkersRun
    from neuroshard_decisions.stages.planning import Planned

WAIT_S = 0.5
"""Between two checks of the clock and of the approval while no attempt may start."""


class DeadlineMissedError(CommandError):
    """The run took longer than a deadline of spec.runPolicy; its processes are stopped."""


class WorkersStoppedError(Exception):
    """The workers are to stop, as was decided."""


def stop_this_process() -> None:
    """Stop this process, as a shell expects it after Ctrl-Z, until it gets SIGCONT.

    Where no shell could continue it, in an orphaned process group, the signal does nothing and the run goes on.
    """
    os.kill(os.getpid(), signal.SIGTSTP)


class LocalLife:
    """Status of one run, and its attempts to train.

    Each start of the command counts as a resumption: deadlines begin again, and restarts of a run that had ended are
    forgotten. How often a failure rule asked for another plan stays, since the plan depends on it.

    Args:
        directory: of the run.
        job: that is run.
        clock: the present time, with its zone.
        wait: sleeps for some seconds.
        stop: stops this process until the shell continues it.
    """

    def __init__(
        self,
        directory: RunDirectory,
        job: "DLRMTrainingJob",
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        wait: Callable[[float], None] = time.sleep,
        stop: Callable[[], None] = stop_this_process,
    ) -> None:
        from neuroshard_api.job.status import Status

        self._directory = directory
        self._job = job
        self._clock = clock
        self._wait = wait
        self._stop = stop
        before = _recorded(directory.status_file)
        has_ended = before.completion_time is not None
        status = Status(replans=before.replans) if has_ended else before
        self._children = Children(directory, job, None, clock=clock)
        self._planned: Planned | None = None
        self._running: str | None = None
        """Name of the workers that run. None: none do."""
        self._seen: tuple[object, ...] = ()
        self._due: datetime | None = None
        """When the next pass is due though nothing changes. None: never."""
        self.status: Status = status
        self._write(start_time=clock(), stages=(), conditions=())

    def __enter__(self) -> Self:
        """Let the run begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record that the run has ended, well or not; one that was interrupted resumes, with its restarts."""
        if kind is None or issubclass(kind, Exception):
            self._write(completion_time=self._clock())

    @property
    def ready_file(self) -> Path:
        """File that NeuroShard's trainer makes once all of its processes train."""
        return self._directory.train_dir / "ready"

    @property
    def replans(self) -> int:
        """How often a failure rule asked for another plan."""
        return self.status.replans or 0

    def forget_replans(self) -> None:
        """Forget that failure rules asked for other plans: those were for other inputs."""
        self._write(replans=None, replans_inputs_hash=None)

    def check(self) -> None:
        """Raise DeadlineMissedError once a deadline of the job has passed."""
        from neuroshard_api.lifecycle.deadlines import missed_deadline

        missed = missed_deadline(self._job.spec.run_policy, self.status, self._clock())
        if missed is not None:
            hint = "hint: raise it, or give the command again: the run resumes, and its deadlines begin again"
            raise DeadlineMissedError(f"{missed.message}; {hint}", ExitCode.JOB_FAILED)

    def train_under_plan(self) -> None:
        """Let attempts be under the plan that the folder has now. Raises CommandError where it cannot be read."""
        from neuroshard_api.job.status import ConfigMapReference, Cost, PlanStatus
        from neuroshard_decisions import names
        from neuroshard_decisions.observed.results import PlanResult
        from neuroshard_decisions.stages.planning import Planned

        plan = plan_document(self._directory.plan_file)
        if not isinstance(plan, PlanResult):
            raise CommandError(f"{self._directory.plan_file}: {'is missing' if plan is None else plan.problem}")
        name, digest = names.plan(self._job.metadata.name, plan.hash), f"sha256:{plan.hash}"
        self._planned = Planned(summary=plan, name=name, is_kept=True)
        before = self.status.plan
        if before is not None and before.hash == digest:
            return
        of_plan = PlanStatus(
            config_map_ref=ConfigMapReference(name=name, key=plan.key),
            hash=digest,
            algorithm=plan.algorithm,
            world_size=plan.world_size,
        )
        self._write(plan=of_plan, cost=Cost(predicted=plan.predicted, baseline=plan.baseline, levers=plan.levers))

    def decide(self, *, in_doubt: "ReplanningStatus | None" = None) -> "Decision":
        """Return the decision of a pass, and record its status.

        Args:
            in_doubt: the record of further plans, where the newest may be given up for the one before. If unset: none.
        """
        from neuroshard_decisions import names
        from neuroshard_decisions.reconcile import attempt

        assert self._planned is not None, "there is a plan"
        report = report_document(self._directory)
        documents = {} if report is None else {names.report(self._job.metadata.name): report}
        if self._running is not None and self._is_ready():
            self._children.ready(self._running)
        status = self.status.model_copy(update={"replanning": in_doubt})
        decision = attempt(self._children.context(status, documents), self._planned)
        if decision.status is not None:
            self.status = decision.status
            self._write()
        wait_s = decision.requeue_after_s
        self._due = None if wait_s is None else self._clock() + timedelta(seconds=wait_s)
        return decision

    def await_turn(self, note: Callable[[str], None]) -> None:
        """Wait before the next pass, as the status says for what. Raises DeadlineMissedError."""
        self.check()
        note(self.status.message or "")
        self._wait(WAIT_S)

    def begin_attempt(self, run: "WorkersRun") -> None:
        """Note that workers start."""
        self.ready_file.unlink(missing_ok=True)
        self._children.started(run)
        self._running, self._seen = run.name, ()

    def end_attempt(self, exit_code: int, log_tail: str) -> None:
        """Note how the workers ended."""
        assert self._running is not None, "they were started"
        self._children.ended(self._running, exit_code, log_tail)
        self._running = None

    def stop_attempt(self) -> None:
        """Note that the workers were stopped, and that nothing of them is left."""
        if self._running is not None:
            self._children.forget(self._running)
        self._running = None

    def suspend(self) -> None:
        """Stop until the user resumes the run; its processes have ended. Deadlines then begin again."""
        self._stop()
        self.ready_file.unlink(missing_ok=True)
        if self._running is not None:
            self._children.starting(self._running)
        self._seen = ()
        self._write(start_time=self._clock(), stages=())

    @property
    def has_ended(self) -> bool:
        """Whether the training has succeeded, or is not tried again."""
        return self.status.completion_time is not None

    def is_due(self) -> bool:
        """Return whether another pass is due next to workers: their files have changed, or it is time."""
        seen = (self._is_ready(), *(each.stat().st_mtime_ns for each in self._reports()))
        is_other, self._seen = seen != self._seen, seen
        return is_other or (self._due is not None and self._clock() >= self._due)

    def stops(self, decision: "Decision") -> bool:
        """Return whether a decision ends the workers that run."""
        from neuroshard_decisions.actions import Delete

        return self.has_ended or any(
            isinstance(each, Delete) and each.name == self._running for each in decision.actions
        )

    def _is_ready(self) -> bool:
        return bool(self._job.spec.trainer.command) or self.ready_file.exists()

    def _reports(self) -> list[Path]:
        from neuroshard_api.job.stage_commands import PROGRESS_FILE, STEP_REPORT_FILE

        files = [self._directory.train_dir / name for name in (PROGRESS_FILE, STEP_REPORT_FILE)]
        return [each for each in files if each.exists()]

    def _write(self, **fields: object) -> None:
        self.status = self.status.model_copy(update={**fields, "replanning": None})
        text = self.status.model_dump_json(indent=1, by_alias=True, exclude_none=True)
        write_file(self._directory.status_file, text + "\n")


def _recorded(file: Path) -> "Status":
    """Return the status of an earlier run in the folder; an empty one where there is none that can be read."""
    from neuroshard_api.documents.document import DocumentError, read_data, validated
    from neuroshard_api.job.status import Status

    try:
        return validated(Status, read_data(file) if file.exists() else {}, where=str(file))
    except DocumentError:
        return Status()

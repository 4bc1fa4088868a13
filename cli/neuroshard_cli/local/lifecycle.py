"""The life of a local run: failures, restarts, and deadlines by the rules of the operator, recorded in status.json."""

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

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.stage_runner import StageFailedError
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.job.status import Status
    from neuroshard_api.job.training_job import Spec
    from neuroshard_api.lifecycle.failures import FailureCause, FailureVerdict

WAIT_S = 0.5
"""Between two checks of the clock until the next attempt is due."""


class DeadlineMissedError(CommandError):
    """The run took longer than a deadline of spec.runPolicy; its processes are stopped."""


def stop_this_process() -> None:
    """Stop this process, as a shell expects it after Ctrl-Z, until it gets SIGCONT.

    Where no shell could continue it, in an orphaned process group, the signal does nothing and the run goes on.
    """
    os.kill(os.getpid(), signal.SIGTSTP)


class LocalLife:
    """Attempts of one run's training.

    Each start of the command counts as a resumption: deadlines begin again, and restarts of a run that had ended are
    forgotten. How often a failure rule asked for another plan stays, since the plan depends on it.

    Args:
        directory: of the run.
        spec: of its job.
        clock: the present time, with its zone.
        wait: sleeps for some seconds.
        stop: stops this process until the shell continues it.
    """

    def __init__(
        self,
        directory: RunDirectory,
        spec: "Spec",
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        wait: Callable[[float], None] = time.sleep,
        stop: Callable[[], None] = stop_this_process,
    ) -> None:
        from neuroshard_api.job.status import Status

        self._file = directory.status_file
        self._train_dir = directory.train_dir
        self._spec = spec
        self._clock = clock
        self._wait = wait
        self._stop = stop
        before = _recorded(self._file)
        has_ended = before.completion_time is not None
        status = Status(replans=before.replans) if has_ended else before
        self._ready_since: datetime | None = None
        self.status: Status = status.model_copy(update={"start_time": clock(), "stages": ()})
        self._write()

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
        return self._train_dir / "ready"

    @property
    def replans(self) -> int:
        """How often a failure rule asked for another plan."""
        return self.status.replans or 0

    def forget_replans(self) -> None:
        """Forget that failure rules asked for other plans: those were for other inputs."""
        self._write(replans=None)

    def check(self) -> None:
        """Raise DeadlineMissedError once a deadline of the job has passed."""
        from neuroshard_api.lifecycle.deadlines import missed_deadline

        missed = missed_deadline(self._spec.run_policy, self.status, self._clock())
        if missed is not None:
            hint = "hint: raise it, or give the command again: the run resumes, and its deadlines begin again"
            raise DeadlineMissedError(f"{missed.message}; {hint}", ExitCode.JOB_FAILED)

    def await_start(self, note: Callable[[str], None]) -> None:
        """Wait until the next attempt may start. Raises DeadlineMissedError."""
        from neuroshard_api.lifecycle.restarts import LONGEST_PAUSE_S

        due = self.status.next_start_time
        while due is not None and timedelta(0) < due - self._clock() <= timedelta(seconds=LONGEST_PAUSE_S):
            self.check()
            note(f"attempt {self.status.restarts} starts in {(due - self._clock()).total_seconds():.0f} s")
            self._wait(WAIT_S)

    def suspend(self) -> None:
        """Stop until the user resumes the run; its processes have ended. Deadlines then begin again."""
        self._stop()
        self.begin_attempt()
        self._write(start_time=self._clock(), stages=())

    def begin_attempt(self) -> None:
        """Forget that the workers of the attempt before were ready."""
        self.ready_file.unlink(missing_ok=True)
        self._ready_since = None

    def look(self) -> None:
        """Note that the workers are ready, and see that they report progress.

        Raises:
            StageFailedError: they report none for longer than failurePolicy.progressTimeoutSeconds.
        """
        from neuroshard_api.lifecycle.restarts import HUNG, no_progress

        if self._ready_since is None and (self._spec.trainer.command or self.ready_file.exists()):
            self._note_ready()
        cause = no_progress(self._spec.failure_policy, self._last_progress(), self._clock())
        if cause is not None:
            error = StageFailedError(f"the stage train hangs: {cause.message}", ExitCode.JOB_FAILED)
            error.cause, error.verdict = cause, HUNG
            raise error

    def verdict(self, error: StageFailedError) -> "FailureVerdict | None":
        """Return the failure policy's verdict on an attempt that failed. None: nothing was started."""
        from neuroshard_api.lifecycle.failures import verdict

        if error.cause is None or error.verdict is not None:
            return error.verdict
        return verdict(
            self._spec.failure_policy,
            error.cause,
            has_run=self._ready_since is not None,
            nobody_late=True,  # the processes of one machine start together
            stopped=False,  # this command's own stops do not come here; another's count, or they would repeat for ever
        )

    def restart(self, cause: "FailureCause", decided: "FailureVerdict", what: str) -> str:
        """Record the next attempt after a failure, and return it as a sentence; empty where the job fails."""
        from neuroshard_api.job.status import Stage
        from neuroshard_api.lifecycle.restarts import Attempt, GivenUp, after_failure

        now, policy = self._clock(), self._spec.failure_policy
        until = self._last_progress() or now if decided.rule == "progressTimeoutSeconds" else now
        healthy = timedelta(0) if self._ready_since is None else max(until - self._ready_since, timedelta(0))
        attempt = Attempt(number=self.status.restarts or 0, healthy=healthy)
        follows = after_failure(policy, self.status, attempt, decided, what=what)
        failure = cause.recorded(Stage.RUNNING, now)
        if isinstance(follows, GivenUp):
            self._write(last_failure=failure, message=follows.message)
            return ""
        replans = self.replans + follows.replans
        self._write(**{**follows.status_fields(failure, now), "replans": replans or None})
        return follows.message

    def _note_ready(self) -> None:
        from neuroshard_api.job.status import StageName, StageState, StageStatus

        self._ready_since = now = self._clock()
        self._write(stages=(StageStatus(name=StageName.RUNNING, state=StageState.ACTIVE, start_time=now),))

    def _last_progress(self) -> datetime | None:
        """Return the time of the last report, or of the workers' readiness. None: they never report."""
        from neuroshard_api.job.stage_commands import PROGRESS_FILE, STEP_REPORT_FILE

        files = [self._train_dir / name for name in (PROGRESS_FILE, STEP_REPORT_FILE)]
        times = [datetime.fromtimestamp(each.stat().st_mtime, UTC) for each in files if each.exists()]
        if not times or self._ready_since is None:
            return None
        return max([*times, self._ready_since])

    def _write(self, **fields: object) -> None:
        self.status = self.status.model_copy(update=fields)
        write_file(self._file, self.status.model_dump_json(indent=1, by_alias=True, exclude_none=True) + "\n")


def _recorded(file: Path) -> "Status":
    """Return the status of an earlier run in the folder; an empty one where there is none that can be read."""
    from neuroshard_api.documents.document import DocumentError, read_data, validated
    from neuroshard_api.job.status import Status

    try:
        return validated(Status, read_data(file) if file.exists() else {}, where=str(file))
    except DocumentError:
        return Status()

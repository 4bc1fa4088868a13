"""Commands of a run's stages, next to each other: their newest words are shown, each failure becomes one sentence."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.job.stage_commands import PROGRESS_FILE
from neuroshard_api.lifecycle.failures import KILLED
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.measured import progress_in
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.stage_failure import failure_of, shown_lines
from neuroshard_cli.local.stage_process import StageProcess, StageTimeoutError

if TYPE_CHECKING:
    from neuroshard_api.documents.progress import TrainingProgress

TRAIN = "train"
_OF_OTHERS = {ExitCode.INFEASIBLE, ExitCode.UNUSABLE_BUNDLE, ExitCode.CLUSTER, ExitCode.TOO_LARGE}
"""Exit codes that no training of NeuroShard's ends with."""
LOWEST_PRIORITY = 19
"""Of what runs next to a training, which goes first."""


class StageFailedError(CommandError):
    """A stage failed; the message says why and where its log is, ``tail`` is the log's end."""

    tail: Sequence[str] = ()
    timed_out: bool = False
    """Whether timeoutSeconds ended it."""
    exit_status: int = ExitCode.OK
    """Exit code of the worker that failed first, as a container has it."""
    summary: str = ""
    """The failure and its log, without the stage's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Commands of one stage, one after the other."""

    stage: str
    """Name of its log."""
    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    """In addition to this process's own."""
    within_s: float | None = None
    """Maximum seconds of each command. None: no limit."""
    names: Mapping[int, str] = field(default_factory=dict)
    """What ranks are that are not trainers."""
    is_beside: bool = False
    """Whether it goes on next to the training, and people do not see it as a stage."""


@dataclass(kw_only=True, slots=True)
class _StartedWork:
    work: Work
    left: list[Sequence[str]]
    """Commands that follow."""
    process: StageProcess


class StageRunner:
    """Runs the commands of one run's stages.

    Args:
        directory: keeps the logs.
        view: shows the stages' output.
    """

    def __init__(self, directory: RunDirectory, view: RunView) -> None:
        self._directory = directory
        self._view = view
        self._running: dict[str, _StartedWork] = {}

    def start(self, name: str, work: Work) -> None:
        """Start a stage's first command. Raises StageFailedError where it cannot be started."""
        first, *left = work.commands
        process = self._process(work, first)
        if not work.is_beside:
            self._directory.begun(work.stage)
        self._running[name] = _StartedWork(work=work, left=left, process=process)

    def look(self) -> dict[str, StageFailedError | None]:
        """Show the newest words of each stage; return those that have ended, with their failures."""
        ended: dict[str, StageFailedError | None] = {}
        for name, running in list(self._running.items()):
            newest = "" if running.work.is_beside else self._newest(running.work.stage)
            if newest:
                self._view.note(running.work.stage, newest)
            try:
                status = running.process.poll()
            except StageTimeoutError:
                ended[name] = self._late(running.work)
            else:
                if status == 0 and running.left:
                    running.process = self._process(running.work, running.left.pop(0))
                elif status is not None:
                    ended[name] = self._failure(running.work, status) if status else None
        for name, error in ended.items():
            self._record_end(self._running.pop(name), "done" if error is None else "failed")
        return ended

    def stop(self, *names: str) -> None:
        """Stop stages in good order; those that have ended are left alone."""
        for name in names:
            running = self._running.pop(name, None)
            if running is not None:
                try:
                    running.process.stop()
                finally:
                    self._record_end(running, "interrupted")

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages that people see at work."""
        return tuple(each.work.stage for each in self._running.values() if not each.work.is_beside)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what runs."""
        return tuple(self._running)

    def _record_end(self, running: _StartedWork, outcome: str) -> None:
        if not running.work.is_beside:
            self._directory.ended(outcome)

    def _process(self, work: Work, command: Sequence[str]) -> StageProcess:
        try:
            return StageProcess(
                command,
                environment=work.environment,
                log=self._directory.log(work.stage),
                mark=str(self._directory.path),
                stage=work.stage,
                within_s=work.within_s,
                niceness=LOWEST_PRIORITY if work.is_beside else 0,
            )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.filename == str(self._directory.log(work.stage)):
                raise
            reason = error.strerror if isinstance(error, OSError) else str(error)
            problem = (
                f"there is no {command[0]!r}" if isinstance(error, FileNotFoundError) else f"{command[0]!r}: {reason}"
            )
            raise StageFailedError(
                f"the stage {work.stage} could not be started: {problem}"
                "; hint: correct the command in the job file, or add its folder to PATH"
            ) from error

    def _late(self, work: Work) -> StageFailedError:
        log = self._directory.log(work.stage)
        late = StageFailedError(
            f"the stage {work.stage} did not end within {work.within_s:.0f} s, its timeoutSeconds; its log is {log}",
            ExitCode.JOB_FAILED,
        )
        late.timed_out, late.exit_status = True, KILLED
        return late

    def _failure(self, work: Work, status: int) -> StageFailedError:
        stage, log = work.stage, self._directory.log(work.stage)
        failure = failure_of(status, log.read_text(encoding="utf-8", errors="replace"), names=work.names)
        problem, separator, hint = failure.sentence.partition("; hint: ")
        summary = f"{problem} (log: {log}){separator}{hint}"
        is_foreign = stage == TRAIN and failure.exit_code in _OF_OTHERS  # a trainer of one's own may end with any code
        code = ExitCode.JOB_FAILED if is_foreign else failure.exit_code
        failed = StageFailedError(f"the stage {stage} failed: {summary}", code)
        failed.tail, failed.exit_status, failed.summary = failure.tail, failure.container_code, summary
        return failed

    def _newest(self, stage: str) -> str:
        """Return the progress of a stage: from the trainer's document, or the last line of the log."""
        if stage == TRAIN and (self._directory.train_dir / PROGRESS_FILE).exists():
            progress = progress_in(self._directory)
            return "" if progress is None else progress_line(progress)  # a trainer of one's own may write anything
        return last_line(self._directory.log(stage))


def last_line(log: Path) -> str:
    """Return the newest line of a log that is still written; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 4096, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = shown_lines(text)
    return lines[-1].strip() if lines else ""


def progress_line(progress: "TrainingProgress") -> str:
    """Return steps and metrics of a training in one line."""
    from neuroshard_api.documents.progress import of_model

    total = "" if progress.num_steps is None else f" of {progress.num_steps:,}"
    metrics = "".join(f", {name} {value:.4f}" for name, value in of_model(progress.metrics).items())
    return f"step {progress.step:,}{total}{metrics}"

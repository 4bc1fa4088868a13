"""One stage's command from begin to end: its newest words are shown, its failure becomes one sentence."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.measured import progress_in
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.stage_failure import failure_of, shown_lines
from neuroshard_cli.local.stage_process import StageSuspendedError, StageTimeoutError, run_stage

if TYPE_CHECKING:
    from neuroshard_api.documents.progress import TrainingProgress


class StageFailedError(CommandError):
    """A stage failed; the message says why and where its log is, ``tail`` is the log's end."""

    tail: Sequence[str] = ()
    timed_out: bool = False
    """Whether timeoutSeconds ended it."""
    exit_status: int | None = None
    """Exit code of the worker that failed first, as a container has it. None: no process has ended by itself."""
    summary: str = ""
    """The failure and its log, without the stage's name."""


class StageRunner:
    """Runs the commands of one run's stages.

    Args:
        directory: keeps the logs.
        view: shows the stages' output.
        check: called several times a second; the command is stopped in good order if it raises.
        suspend: called once the user has suspended a stage, whose command runs again when this returns.
    """

    def __init__(
        self, directory: RunDirectory, view: RunView, *, check: Callable[[], None], suspend: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._check = check
        self._suspend = suspend
        self._view = view

    def run(
        self,
        stage: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        within_s: float | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a stage's command.

        Args:
            stage: name of the stage.
            command: program and arguments.
            environment: in addition to this process's own.
            within_s: maximum seconds. If unset: no limit.
            look: called several times a second; the command is stopped in good order if it raises.

        Raises:
            StageFailedError: it failed.
        """
        with self._directory.timed(stage):
            self._run(stage, command, environment, within_s=within_s, look=look)

    def _run(
        self,
        stage: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        within_s: float | None,
        look: Callable[[], None],
    ) -> None:
        def noted() -> None:
            newest = self._newest(stage)
            if newest:
                self._view.note(stage, newest)
            self._check()
            look()

        log = self._directory.log(stage)
        try:
            while True:
                try:
                    status = run_stage(
                        command,
                        environment=environment,
                        log=log,
                        mark=str(self._directory.path),
                        look=noted,
                        within_s=within_s,
                    )
                except StageSuspendedError:
                    self._view.note(stage, "suspended; `fg` resumes it")
                    with self._view.hidden():
                        self._suspend()
                else:
                    break
        except StageTimeoutError as error:
            late = StageFailedError(
                f"the stage {stage} did not end within {within_s:.0f} s, its timeoutSeconds; its log is {log}",
                ExitCode.JOB_FAILED,
            )
            late.timed_out = True
            raise late from error
        except FileNotFoundError as error:
            raise StageFailedError(
                f"the stage {stage} could not be started: there is no {command[0]!r}"
                "; hint: correct the command in the job file, or add its folder to PATH"
            ) from error
        if status:
            failure = failure_of(status, log.read_text(encoding="utf-8", errors="replace"))
            problem, separator, hint = failure.sentence.partition("; hint: ")
            summary = f"{problem} (log: {log}){separator}{hint}"
            failed = StageFailedError(f"the stage {stage} failed: {summary}", failure.exit_code)
            failed.tail, failed.exit_status, failed.summary = failure.tail, failure.container_code, summary
            raise failed

    def _newest(self, stage: str) -> str:
        """Return the progress of a stage: from the trainer's document, or the last line of the log."""
        from neuroshard_api.job.stage_commands import PROGRESS_FILE

        if stage == "train" and (self._directory.train_dir / PROGRESS_FILE).exists():
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
    total = "" if progress.num_steps is None else f" of {progress.num_steps:,}"
    metrics = "".join(f", {name} {value:.4f}" for name, value in progress.metrics.items())
    return f"step {progress.step:,}{total}{metrics}"

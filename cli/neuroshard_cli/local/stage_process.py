"""The processes of a stage: started with their output in a log, and never left behind. Knows no stage."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil
from neuroshard_api.job.stage_commands import GRACE_SECONDS

GRACE_S = float(GRACE_SECONDS)
"""Between the request to stop and the kill; a second Ctrl-C kills at once."""
KILLED_WITHIN_S = 5.0
"""A killed process may stay in the table for good where nobody asks for its status."""
MARK_VARIABLE = "NEUROSHARD_RUN_MARK"
"""In the environment of every process of a run, whatever group or session it has moved to."""
STAGE_VARIABLE = "NEUROSHARD_STAGE_MARK"
"""Next to it: the stage of the process."""


class StageTimeoutError(Exception):
    """A stage's processes did not end in time; they are gone."""


class StageProcess:
    """The process of a stage, with its children.

    Args:
        command: program and arguments.
        environment: in addition to this process's own.
        log: gets all output; an earlier one is replaced.
        mark: names the run among all processes of this machine.
        stage: names the stage among those of the run.
        within_s: maximum seconds. If unset: no limit.
        niceness: of its priority. If unset: as this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        mark: str,
        stage: str,
        within_s: float | None = None,
        niceness: int = 0,
    ) -> None:
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the stages' commands, or the user's own trainer
                list(command),
                env={**os.environ, **environment, MARK_VARIABLE: mark, STAGE_VARIABLE: stage},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the stage in good order
            )
        self._mark, self._stage = mark, stage
        self._deadline = None if within_s is None else time.monotonic() + within_s
        if niceness:
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal; None: it runs. No child is left of one that has ended.

        Raises StageTimeoutError where it ran too long; it is gone then.
        """
        status = self._process.poll()
        if status is not None:
            end_marked(self._mark, self._stage)
        elif self._deadline is not None and time.monotonic() > self._deadline:
            self.stop()
            raise StageTimeoutError
        return status

    def stop(self) -> None:
        """Ask it to stop, and kill it after the grace period, or at once when interrupted meanwhile."""
        try:
            self._process.terminate()
            self._process.wait(timeout=GRACE_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
        finally:
            end_marked(self._mark, self._stage)


def end_marked(mark: str, stage: str | None = None) -> int:
    """Kill every process of a run, or of one stage, that is still there, and return how many there were."""
    found = [process for process in psutil.process_iter() if _is_marked(process, mark, stage)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=KILLED_WITHIN_S)
    return len(found)


def _is_marked(process: psutil.Process, mark: str, stage: str | None) -> bool:
    try:
        found = {} if process.pid == os.getpid() else process.environ()
    except (psutil.Error, OSError):
        return False  # another user's, or gone already
    return found.get(MARK_VARIABLE) == mark and stage in {None, found.get(STAGE_VARIABLE)}


@contextlib.contextmanager
def stoppable(others: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Take SIGTERM and the end of the terminal as Ctrl-C, and have handlers of other signals; afterwards as before."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handlers = {signal.SIGTERM: interrupt, signal.SIGHUP: interrupt, **others}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

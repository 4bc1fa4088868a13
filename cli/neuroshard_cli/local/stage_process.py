"""The processes of one stage: started with their output in a log, watched, and never left behind. Knows no stage."""

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

LOOK_EVERY_S = 0.1
GRACE_S = float(GRACE_SECONDS)
"""Between the request to stop and the kill; a second Ctrl-C kills at once."""
KILLED_WITHIN_S = 5.0
"""A killed process may stay in the table for good where nobody asks for its status."""
MARK_VARIABLE = "NEUROSHARD_RUN_MARK"
"""In the environment of every process of a run, whatever group or session it has moved to."""


class StageTimeoutError(Exception):
    """A stage's processes did not end in time; they are gone."""


class StageSuspendedError(Exception):
    """The user suspended the run, as with Ctrl-Z; the stage's processes were stopped in good order."""


def run_stage(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    mark: str,
    look: Callable[[], None],
    within_s: float | None = None,
) -> int:
    """Run a command to its end and return its exit status; a negative one is the signal that killed it.

    However this returns or raises, none of the command's processes is left, nor their children.

    Args:
        command: program and arguments.
        environment: in addition to this process's own.
        log: gets all output; an earlier one is replaced.
        mark: names the run among all processes of this machine.
        look: called several times a second while the command runs.
        within_s: most seconds; None: no limit.

    Raises:
        StageTimeoutError: it ran longer.
        StageSuspendedError: this process got SIGTSTP.
        KeyboardInterrupt: this process was asked to stop; so were the command's, which had their grace period.
    """
    with stoppable({signal.SIGTSTP: _suspend}), log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the stages' commands, or the user's own trainer
            list(command),
            env={**os.environ, **environment, MARK_VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the stage in good order
        )
        try:
            status = _watch(process, look, within_s)
        except BaseException:
            _stop(process)
            raise
        finally:
            end_marked(mark)
    if status is None:
        raise StageTimeoutError
    return status


def end_marked(mark: str) -> int:
    """Kill every process of a run that is still there, and return how many there were."""
    found = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=KILLED_WITHIN_S)
    return len(found)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(MARK_VARIABLE) == mark
    except (psutil.Error, OSError):
        return False  # another user's, or gone already


def _watch(process: subprocess.Popen[bytes], look: Callable[[], None], within_s: float | None) -> int | None:
    """Return the exit status; None: the time ran out, and the process is gone."""
    deadline = None if within_s is None else time.monotonic() + within_s
    while True:
        try:
            status = process.wait(timeout=LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            look()
        else:
            look()
            return status
        if deadline is not None and time.monotonic() > deadline:
            _stop(process)
            return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to stop, and kill it after the grace period, or at once when interrupted meanwhile.

    Ctrl-Z is for a process that has stopped: until then it is ignored, so that no checkpoint is cut off by it.
    """
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        process.terminate()
        process.wait(timeout=GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _suspend(_number: int, _frame: FrameType | None) -> None:
    """Take Ctrl-Z as the wish to free the devices."""
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # a second one before `_stop` ignores it would skip that
    raise StageSuspendedError


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

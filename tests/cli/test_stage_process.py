"""The processes of a stage, real ones."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from neuroshard_cli.local import stage_process
from neuroshard_cli.local.stage_process import StageProcess, StageTimeoutError, end_marked, stoppable
from support.processes import has_ended

WAITS = "import os, signal; os.write(1, b'ready\\n'); signal.pause()"
"""Writes in one call: a signal that came within a print would find its buffer in use."""
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
INTERRUPTS_AGAIN = """import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Does not stop when asked, and has the command interrupted a second time."""
HAS_A_CHILD = f"""import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., int | None]:
    """Return a function that runs Python code as a stage, until it ends or Ctrl-Z is pressed."""

    def run(code: str, *, look: Callable[[], None] = lambda: None, **options: Any) -> int | None:
        command = [sys.executable, "-c", code]
        log = tmp_path / "stage.log"
        asked: list[int] = []
        with stoppable({signal.SIGTSTP: lambda number, _: asked.append(number)}):
            process = StageProcess(
                command, environment={"GIVEN": "1"}, log=log, mark=str(tmp_path), stage="stage", **options
            )
            try:
                while (status := process.poll()) is None and not asked:
                    look()
                    os.sched_yield()
            finally:
                process.stop()
        return status

    return run


def log_of(folder: Path) -> str:
    """Return the output of the stage so far."""
    return (folder / "stage.log").read_text(encoding="utf-8")


def child_in(log: str) -> int:
    """Return the process id that HAS_A_CHILD has printed; its child prints too."""
    return int(next(line for line in log.splitlines() if line.isdecimal()))


def once_ready(folder: Path, act: Callable[[], None]) -> Callable[[], None]:
    """Return a look that acts when the stage first prints something."""
    done = threading.Event()

    def look() -> None:
        if log_of(folder) and not done.is_set():
            done.set()
            act()

    return look


def test_output_and_exit_status_are_kept(stage: Callable[..., int | None], tmp_path: Path) -> None:
    """Both streams, in one log."""
    code = "import os, sys; print(os.environ['GIVEN'], flush=True); print('no', file=sys.stderr); sys.exit(3)"

    assert stage(code) == 3
    assert log_of(tmp_path) == "1\nno\n"


def test_a_signal_is_a_negative_status(stage: Callable[..., int | None]) -> None:
    """As the standard library has it."""
    assert stage("import os; os.kill(os.getpid(), 9)") == -signal.SIGKILL


def test_a_stage_reads_no_terminal(stage: Callable[..., int | None], tmp_path: Path) -> None:
    """It would wait for ever."""
    stage("import sys; print(repr(sys.stdin.read()))")

    assert log_of(tmp_path) == "''\n"


def test_a_stage_beyond_its_time_is_ended(stage: Callable[..., int | None]) -> None:
    """The caller learns that it was not its own end."""
    with pytest.raises(StageTimeoutError):
        stage(WAITS, within_s=0.3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_stop_ends_the_stage_in_good_order(
    stage: Callable[..., int | None], tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C, a service manager, a closed terminal: the stage is asked to stop and may save its state."""
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0))); "

    with pytest.raises(KeyboardInterrupt):
        stage(code + WAITS, look=once_ready(tmp_path, lambda: os.kill(os.getpid(), number)))

    assert log_of(tmp_path) == "ready\nsaved\n"


def test_a_second_ctrl_c_does_not_wait(
    stage: Callable[..., int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that does not stop when asked is killed at once."""
    monkeypatch.setattr(stage_process, "GRACE_S", 600.0)

    with pytest.raises(KeyboardInterrupt):
        stage(INTERRUPTS_AGAIN, look=once_ready(tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT)))


@pytest.mark.parametrize(
    ("first", "outcome"),
    [(signal.SIGTSTP, contextlib.nullcontext()), (signal.SIGINT, pytest.raises(KeyboardInterrupt))],
    ids=["suspended", "interrupted"],
)
def test_ctrl_z_while_a_stage_stops_cuts_nothing_off(
    stage: Callable[..., int | None], tmp_path: Path, first: signal.Signals, outcome: AbstractContextManager[Any]
) -> None:
    """The stage that was asked to stop writes its checkpoint, however often Ctrl-Z is pressed meanwhile."""
    code = f"""
import os, signal, sys

def save(*_):
    for _ in range(20_000):
        os.kill({os.getpid()}, signal.SIGTSTP)
        os.sched_yield()
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
"""

    with outcome:
        stage(code + WAITS, look=once_ready(tmp_path, lambda: os.kill(os.getpid(), first)))

    assert log_of(tmp_path) == "ready\nsaved\n"


def test_children_in_other_sessions_are_ended_too(
    stage: Callable[..., int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of torchrun have sessions of their own, and they may be deaf."""
    monkeypatch.setattr(stage_process, "GRACE_S", 5.0)

    with pytest.raises(KeyboardInterrupt):
        stage(HAS_A_CHILD, look=once_ready(tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT)))

    assert has_ended(child_in(log_of(tmp_path)))


def test_a_stage_that_ended_leaves_no_children(stage: Callable[..., int | None], tmp_path: Path) -> None:
    """Also where it succeeded and forgot one."""
    forgets = HAS_A_CHILD.replace("child.wait()", "")

    assert stage(forgets) == 0
    assert has_ended(child_in(log_of(tmp_path)))


def test_what_another_run_left_is_found_by_its_mark(tmp_path: Path) -> None:
    """After a kill -9 of the command, the next run of the folder ends what still trains there."""
    environment = os.environ | {stage_process.MARK_VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", WAITS], env=environment, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == b"ready\n"

        assert end_marked(f"{tmp_path}/other") == 0
        assert end_marked(str(tmp_path), "train") == 0
        assert end_marked(str(tmp_path)) == 1


def test_signals_are_as_before_afterwards(stage: Callable[..., int | None]) -> None:
    """Anyone who calls keeps its own handling."""
    before = signal.getsignal(signal.SIGTERM)
    stage("")

    assert signal.getsignal(signal.SIGTERM) == before

"""SIGTERM while the interpreter of ``neuroshard publish`` starts, with real processes: it waits, and is not lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from neuroshard_operator.children.pods import publishing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
WITHIN_S = 30.0


def has(pid: int, field: str, number: signal.Signals) -> bool:
    """Return whether a process blocks (SigBlk), catches (SigCgt), or has pending (ShdPnd) a signal."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith(f"{field}:"))
    return bool(mask >> (number - 1) & 1)


@contextmanager
def starting(tmp_path: Path, *command: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the operator's command of a container, and yield it once it blocks SIGTERM and has no handler yet."""
    account = tmp_path / "account"
    account.mkdir()
    words = publishing("result", [str(tmp_path / "report.json")], command, watch=True)
    place = words.index("--watch")
    argv = [*words[:place], "--service-account", str(account), "--retry", "0", *words[place:]]
    here = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(argv, env={**os.environ, **here, "PATH": path, **environment})
    try:
        until = time.monotonic() + WITHIN_S
        while not has(process.pid, "SigBlk", signal.SIGTERM):
            assert time.monotonic() < until
        assert not has(process.pid, "SigCgt", signal.SIGTERM)
        yield process
        process.wait(WITHIN_S)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("index", ["0", "1"])
def test_a_sidecar_that_is_stopped_while_it_starts_ends_well(tmp_path: Path, index: str) -> None:
    """The signal is pending until the handler is there, also in the pods that publish nothing."""
    with starting(tmp_path, JOB_COMPLETION_INDEX=index) as process:
        process.terminate()
        assert has(process.pid, "ShdPnd", signal.SIGTERM)

    assert process.returncode == 0


def test_a_command_gets_the_signal_that_came_before_it_was_started(tmp_path: Path) -> None:
    """It is passed on once there is a child, which ends by it."""
    with starting(tmp_path, "sleep", "50") as process:
        process.terminate()

    assert process.returncode == 128 + signal.SIGTERM


def test_a_command_inherits_no_blocked_signal(tmp_path: Path) -> None:
    """A trainer that could not be asked to stop would write no checkpoint."""
    report = tmp_path / "status"
    environment: Mapping[str, str] = {"REPORT": str(report)}
    with starting(tmp_path, "sh", "-c", 'grep SigBlk /proc/self/status > "$REPORT"', **environment) as process:
        pass

    assert process.returncode == 0
    assert report.read_text(encoding="ascii").split() == ["SigBlk:", "0" * 16]

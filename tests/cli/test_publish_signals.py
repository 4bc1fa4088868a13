"""SIGTERM while the interpreter of ``neuroshard publish`` starts, with real processes: it waits, and is not lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from neuroshard_operator.children.pods import publishing

pytestmark = pytest.mark.slow
WITHIN_S = 100.0
"""Ends a hang."""
STOPS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
"""Python imports it as sitecustomize before it runs anything else."""
OLD_ENV = """#!/bin/sh
case $1 in -*) echo "env: unrecognized option '$1'" >&2; exit 125;; esac
exec /usr/bin/env "$@"
"""
"""The env of busybox, or of GNU coreutils before 8.31: it cannot block signals."""


def has(pid: int, field: str, number: signal.Signals) -> bool:
    """Return whether a process blocks (SigBlk), catches (SigCgt), or has pending (ShdPnd) a signal."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith(f"{field}:"))
    return bool(mask >> (number - 1) & 1)


@contextmanager
def starting(tmp_path: Path, *command: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the operator's command of a container, yield it stopped while its interpreter starts, and let it go on."""
    account = tmp_path / "account"
    account.mkdir()
    words = publishing("result", [str(tmp_path / "report.json")], command, watch=True)
    place = words.index("--watch")
    argv = [*words[:place], "--service-account", str(account), "--retry", "0", *words[place:]]
    here = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    first = tmp_path / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text(STOPS_ITSELF, encoding="ascii")
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(argv, env={**os.environ, **here, "PATH": path, "PYTHONPATH": str(first), **environment})
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert not has(process.pid, "SigCgt", signal.SIGTERM)
        yield process
        process.send_signal(signal.SIGCONT)
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
        assert has(process.pid, "ShdPnd", signal.SIGTERM)

    assert process.returncode == 128 + signal.SIGTERM


def test_a_command_inherits_no_blocked_signal(tmp_path: Path) -> None:
    """A trainer that could not be asked to stop would write no checkpoint."""
    report = tmp_path / "status"
    environment: Mapping[str, str] = {"REPORT": str(report)}
    with starting(tmp_path, "sh", "-c", 'grep SigBlk /proc/self/status > "$REPORT"', **environment) as process:
        pass

    assert process.returncode == 0
    assert report.read_text(encoding="ascii").split() == ["SigBlk:", "0" * 16]


def test_an_image_whose_env_cannot_block_signals_runs_the_command_without(tmp_path: Path) -> None:
    """Its env would end the container with 125."""
    (tmp_path / "bin").mkdir()
    old_env = tmp_path / "bin" / "env"
    old_env.write_text(OLD_ENV, encoding="ascii")
    old_env.chmod(0o755)
    with starting(tmp_path, "sh", "-c", "exit 3") as process:
        assert not has(process.pid, "SigBlk", signal.SIGTERM)

    assert process.returncode == 3

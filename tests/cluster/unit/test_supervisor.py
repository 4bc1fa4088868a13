import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from neuroshard_cluster.supervisor import Supervisor, declare

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes as Linux shows them")


def look_until(supervisor: Supervisor, state: Callable[[], bool]) -> None:
    """Let the supervisor look until a state is reached."""
    deadline = time.monotonic() + 100
    while not state():
        assert time.monotonic() < deadline
        supervisor.look()


def test_a_declared_process_runs_and_its_output_is_kept(tmp_path: Path) -> None:
    """What a process prints is in its log; the next look finds it ended."""
    declare(tmp_path, "hello", ["echo", "hello"])
    supervisor = Supervisor(tmp_path)

    look_until(supervisor, (tmp_path / "hello/pid").exists)
    look_until(supervisor, lambda: not (tmp_path / "hello/pid").exists())

    assert (tmp_path / "hello/log").read_text() == "hello\n"


def test_a_process_that_should_be_down_is_killed(tmp_path: Path) -> None:
    """The file `down` ends a running process, and it stays down."""
    declare(tmp_path, "sleeper", ["sleep", "60"])
    supervisor = Supervisor(tmp_path)
    look_until(supervisor, (tmp_path / "sleeper/pid").exists)
    pid = int((tmp_path / "sleeper/pid").read_text())

    (tmp_path / "sleeper/down").touch()
    look_until(supervisor, lambda: not (tmp_path / "sleeper/pid").exists())
    supervisor.look()

    assert not Path(f"/proc/{pid}").exists()
    assert not (tmp_path / "sleeper/pid").exists()


def test_a_killed_process_comes_back(tmp_path: Path) -> None:
    """A process that ends by itself is started again."""
    declare(tmp_path, "sleeper", ["sleep", "60"])
    supervisor = Supervisor(tmp_path)
    look_until(supervisor, (tmp_path / "sleeper/pid").exists)
    first = int((tmp_path / "sleeper/pid").read_text())

    os.kill(first, signal.SIGKILL)
    look_until(supervisor, lambda: not (tmp_path / "sleeper/pid").exists())
    look_until(supervisor, (tmp_path / "sleeper/pid").exists)
    second = int((tmp_path / "sleeper/pid").read_text())
    (tmp_path / "sleeper/down").touch()
    look_until(supervisor, lambda: not (tmp_path / "sleeper/pid").exists())

    assert second != first


def test_declaring_writes_plain_words(tmp_path: Path) -> None:
    """Paths in a command line become text."""
    declare(tmp_path, "show", ["cat", tmp_path])

    assert json.loads((tmp_path / "show/command.json").read_text()) == ["cat", str(tmp_path)]

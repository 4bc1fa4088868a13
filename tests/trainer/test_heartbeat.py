"""Lost ranks, on real processes whose main threads hang in native code."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from neuroshard_api.exit_codes import ExitCode
from neuroshard_trainer.heartbeat import GRACE_SECONDS, PERIOD_SECONDS, TIMEOUT_SECONDS

WORKER = Path(__file__).with_name("heartbeat_worker.py")
PROMISED_SECONDS = 15
LIMIT_SECONDS = 25
"""The promised time, and some for a machine that is busy."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def two_ranks(tmp_path: Path, behavior: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start two processes and yield them once both beat; none outlives the block."""
    with ExitStack() as stack:
        ranks = []
        for rank in range(2):
            command = [sys.executable, str(WORKER), str(rank), str(tmp_path / "meeting"), behavior]
            pipe = subprocess.PIPE
            started = stack.enter_context(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
            stack.callback(started.kill)
            ranks.append(started)
        for each in ranks:
            assert each.stdout is not None
            assert each.stdout.readline() == "beats\n"
        yield ranks


def test_the_heartbeats_own_times_keep_the_promise() -> None:
    """A pause, an exchange that runs into its timeout, and the grace period, whatever the machine is busy with."""
    assert PERIOD_SECONDS + TIMEOUT_SECONDS + GRACE_SECONDS < PROMISED_SECONDS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_survivor_that_hangs_in_native_code_ends(tmp_path: Path, lost: int, number: signal.Signals) -> None:
    """Soon after the loss, with code 7 and a sentence, also where rank 0 is lost."""
    with two_ranks(tmp_path, "hang") as ranks:
        ranks[lost].send_signal(number)
        began = time.monotonic()

        _, errors = ranks[1 - lost].communicate(timeout=60)
        took_seconds = time.monotonic() - began

    assert ranks[1 - lost].returncode == ExitCode.PEER_LOST, errors
    assert took_seconds < LIMIT_SECONDS
    (sentence,) = [line for line in errors.splitlines() if line.startswith("error:")]
    assert "after step 7 another process was gone or did not answer (no heartbeat: " in sentence


def test_ranks_that_end_together_lose_nobody(tmp_path: Path) -> None:
    """The last exchange is one in which all want to leave."""
    with two_ranks(tmp_path, "end") as ranks:
        assert [each.wait(timeout=60) for each in ranks] == [0, 0]

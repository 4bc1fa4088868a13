"""Lost ranks, on real processes whose main threads hang in native code."""

import signal
from pathlib import Path

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.ranks.heartbeat import GRACE_SECONDS, PERIOD_SECONDS, TIMEOUT_SECONDS
from support.trainer.rank_server import RankServer, output

WORKER = Path(__file__).with_name("heartbeat_worker.py")
PROMISED_SECONDS = 15
LIMIT_SECONDS = 60.0
"""Ten times the shortened times of the worker's heartbeat: a survivor that hangs is killed then."""

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_the_heartbeats_own_times_keep_the_promise() -> None:
    """A pause, an exchange that runs into its timeout, and the grace period, whatever the machine is busy with."""
    assert PERIOD_SECONDS + TIMEOUT_SECONDS + GRACE_SECONDS < PROMISED_SECONDS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_survivor_that_hangs_in_native_code_ends(
    tmp_path: Path, ranks: RankServer, lost: int, number: signal.Signals
) -> None:
    """Soon after the loss, with code 7 and a sentence, also where rank 0 is lost."""
    after_s = 0 if number is signal.SIGSTOP else LIMIT_SECONDS  # a stopped rank is killed once the other has ended

    ended = ranks.run(f"{WORKER}:lose", tmp_path, lost, number, folder=tmp_path, count=2, after_failure_s=after_s)

    printed = output(tmp_path, 1 - lost)
    assert ended.codes[1 - lost] == ExitCode.PEER_LOST, printed
    assert ended.ended_at[1 - lost] - float((tmp_path / "lost").read_text()) < LIMIT_SECONDS
    (sentence,) = [line for line in printed.splitlines() if line.startswith("error:")]
    assert "after step 7 another process was gone or did not answer (no heartbeat: " in sentence


def test_ranks_that_end_together_lose_nobody(tmp_path: Path, ranks: RankServer) -> None:
    """The last exchange is one in which all want to leave."""
    ranks.succeed(f"{WORKER}:end", folder=tmp_path, count=2)

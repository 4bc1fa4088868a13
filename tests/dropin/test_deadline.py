"""Ranks that fail or are late in the user's code, where the others wait in a collective."""

import re
from pathlib import Path

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from support.trainer.rank_server import RankServer, output

pytestmark = [pytest.mark.processes, pytest.mark.slow]
WORKER = Path(__file__).parent / "deadline_worker.py"


def test_a_failure_ends_the_ranks_that_wait_in_a_collective(tmp_path: Path, ranks: RankServer) -> None:
    """The one that failed raises; the others, which no exception reaches, print the same sentence and end with 7."""
    ended = ranks.run(f"{WORKER}:fail", folder=tmp_path, count=3, after_failure_s=300)

    assert ended.codes == [ExitCode.PEER_LOST, 0, ExitCode.PEER_LOST]
    for rank in (0, 2):
        sentence = f"error: rank {rank}: make of plan 'a': rank 1: RuntimeError: no memory\n"
        assert sentence in output(tmp_path, rank)


def test_a_rank_that_is_late_ends_all_after_the_limit(tmp_path: Path, ranks: RankServer) -> None:
    """The late one ends itself; the collective of the other may fail before, so that it raises the same sentence."""
    ended = ranks.run(f"{WORKER}:hang", folder=tmp_path, count=2, after_failure_s=300)

    assert ended.codes[1] == ExitCode.PEER_LOST
    assert ended.codes[0] in {ExitCode.PEER_LOST, ExitCode.INTERNAL_ERROR}
    for rank in range(2):
        sentences = re.findall(r"make of plan 'a': rank \d: is not done after 1 s", output(tmp_path, rank))
        assert len(sentences) == 1

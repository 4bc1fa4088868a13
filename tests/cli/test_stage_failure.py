"""Why a stage failed."""

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.local.stage_failure import TAIL_LINES, failure_of

TORCHRUN = """E1121 07:25:33 torch/distributed/elastic/api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 12)
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_a_programs_own_sentence_is_the_cause() -> None:
    """With its exit code, which says what to do about it."""
    failure = failure_of(3, "reading\nerror: tables need 412 GiB; add devices\n")

    assert failure.sentence == "tables need 412 GiB; add devices"
    assert failure.exit_code is ExitCode.INFEASIBLE
    assert failure.tail == ["reading", "error: tables need 412 GiB; add devices"]


def test_of_several_ranks_the_first_sentence_counts() -> None:
    """The others only say that they lost it; torchrun's own traceback is left out."""
    log = "error: rank 1: line 7: no label\nerror: rank 0: lost a peer\n" + TORCHRUN.format(code=2)

    failure = failure_of(1, log)

    assert failure.sentence == "rank 1: line 7: no label"
    assert failure.exit_code is ExitCode.INVALID_INPUT
    assert failure.tail == ["error: rank 1: line 7: no label", "error: rank 0: lost a peer"]


def test_a_killed_rank_is_named() -> None:
    """What the others say of it is not a cause."""
    failure = failure_of(1, "error: rank 0: lost a peer\n" + TORCHRUN.format(code=-9))

    assert failure.sentence == "rank 1 was killed by SIGKILL, most often for lack of memory; see `dmesg`"
    assert failure.exit_code is ExitCode.JOB_FAILED


@pytest.mark.parametrize(
    ("status", "log", "sentence"),
    [
        (1, "", "ended with exit code 1 and printed nothing"),
        (7, "one\rtwo\n\n", "ended with exit code 7: two"),
        (-11, "", "was killed by SIGSEGV"),
        (-60, "", "was killed by signal 60"),
    ],
    ids=["silent", "without-a-sentence", "crash", "unnamed-signal"],
)
def test_without_a_sentence_the_last_words_are_told(status: int, log: str, sentence: str) -> None:
    """Also those of a progress bar, which ends no line."""
    assert failure_of(status, log).sentence == sentence


def test_a_bug_is_no_known_code() -> None:
    """Exit code 1 of a stage must not read as a bug of the command itself."""
    assert failure_of(1, "").exit_code is ExitCode.JOB_FAILED


def test_a_long_log_is_cut() -> None:
    """The end of it is shown, the file has the rest."""
    assert failure_of(1, "line\n" * 1000).tail == ["line"] * TAIL_LINES

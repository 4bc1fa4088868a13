"""Why a stage failed."""

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.local.stage_failure import TAIL_LINES, failure_of, with_resumption

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
    ("log", "sentence"),
    [
        (TORCHRUN.format(code=-9), "rank 1, embedding server 0, was killed by SIGKILL"),
        (
            "error: rank 1: memory is used up\n" + TORCHRUN.format(code=2),
            "rank 1, embedding server 0: memory is used up",
        ),
        ("error: rank 0: no label\n" + TORCHRUN.format(code=2), "rank 0: no label"),
    ],
    ids=["killed", "with-a-sentence", "a-trainer"],
)
def test_a_rank_that_is_a_server_is_named_so(log: str, sentence: str) -> None:
    """With its rank, by which logs name it."""
    assert failure_of(1, log, names={1: "embedding server 0"}).sentence.startswith(sentence)


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


def test_what_torch_logs_of_itself_is_no_cause() -> None:
    """Neither in the sentence nor in the tail; its errors stay."""
    log = (
        "reading\nW1127 09:05:23.619000 11542 torch/distributed/run.py:982] ****\n"
        "[rank0]:W1127 09:05:37.760000 11550 torch/fx/_symbolic_trace.py:57] is_fx_tracing will return true\n"
    )

    failure = failure_of(7, log)

    assert failure.sentence == "ended with exit code 7: reading"
    assert failure.tail == ["reading"]
    assert failure_of(7, log.replace(":W1127", ":E1127")).tail[-1].startswith("[rank0]:E1127")


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("it failed", "remove the cause; the same command then resumes"),
        ("it failed; hint: free memory", "free memory; the same command then resumes"),
        ("it failed; hint: wait; the same command then resumes", "wait; the same command then resumes"),
    ],
)
def test_a_failed_run_says_that_the_same_command_resumes(message: str, hint: str) -> None:
    """Once, after the remedy."""
    assert with_resumption(message) == f"it failed; hint: {hint}"


def test_a_bug_is_no_known_code() -> None:
    """Exit code 1 of a stage must not read as a bug of the command itself."""
    assert failure_of(1, "").exit_code is ExitCode.JOB_FAILED


def test_a_long_log_is_cut() -> None:
    """The end of it is shown, the file has the rest."""
    assert failure_of(1, "line\n" * 1000).tail == ["line"] * TAIL_LINES

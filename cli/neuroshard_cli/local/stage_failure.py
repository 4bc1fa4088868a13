"""Why a stage failed, in one sentence, from its exit status and its log. Starts nothing."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuroshard_api.process.exit_codes import ExitCode

TAIL_LINES = 15
SIGNALED = 128
"""Exit code of a container that a signal ended, less the signal's number."""
_OWN_SENTENCE = re.compile(r"(?:^|: )error: (?P<sentence>.+)")
_WORKER = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")
"""How torchrun says which of its workers failed first; its own traceback follows, which helps no one."""
_RANK = re.compile(r"^rank (?P<rank>\d+): ")
"""How a trainer's own sentence begins."""
_OF_TORCH = re.compile(r"^(\[rank\d+\]:)?[IW]\d{4} [\d:.]+ \d+ ")
"""How torch logs information and warnings of its own, which tell nothing of a stage."""
RESUMES = "the same command then resumes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What is known of a stage's failure."""

    sentence: str
    exit_code: ExitCode
    """Of the command."""
    container_code: int
    """Exit code of the worker that failed first, as a container has it: 128 plus the number of a signal."""
    tail: Sequence[str]
    """The log's last lines."""


def failure_of(status: int, log: str, *, names: Mapping[int, str] | None = None) -> Failure:
    """Return the failure of a stage that ended with a status other than 0; a negative one is a signal.

    Args:
        status: of the stage.
        log: all that it printed.
        names: what ranks are, where a rank alone does not say it.
    """
    lines = shown_lines(log)
    at, worker = next(((at, found) for at, line in enumerate(lines) if (found := _WORKER.search(line))), (None, None))
    code = status if worker is None else int(worker["code"])
    who = "" if worker is None else f"{_named(worker['rank'], names or {})} "
    own = next((found["sentence"] for line in lines if (found := _OWN_SENTENCE.search(line))), None)
    if code < 0:
        sentence = f"{who}was killed by {_signal(-code)}{_hint(-code)}"
    elif own is not None:
        sentence = _RANK.sub(lambda found: f"{_named(found['rank'], names or {}).rstrip(',')}: ", own)
    else:
        last = f": {lines[-1]}" if lines else " and printed nothing"
        sentence = f"{who}ended with exit code {code}{last}"
    known = code in set(ExitCode) - {ExitCode.OK, ExitCode.INTERNAL_ERROR}
    return Failure(
        sentence=sentence,
        container_code=code if code >= 0 else SIGNALED - code,
        exit_code=ExitCode(code) if known else ExitCode.JOB_FAILED,
        tail=(lines[:at] or lines)[-TAIL_LINES:],
    )


def _named(rank: str, names: Mapping[int, str]) -> str:
    name = names.get(int(rank))
    return f"rank {rank}" if name is None else f"rank {rank}, {name},"


def shown_lines(text: str) -> list[str]:
    """Return the lines of a log that tell something of its stage."""
    lines = (line.rstrip() for line in re.split(r"[\r\n]+", text))
    return [line for line in lines if line.strip() and not _OF_TORCH.match(line)]


def with_resumption(message: str) -> str:
    """Return the sentence of a run's failure with the hint that the same command resumes the run."""
    problem, _, hint = message.partition("; hint: ")
    if RESUMES in hint:
        return message
    return f"{problem}; hint: {hint or 'remove the cause'}; {RESUMES}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(number: int) -> str:
    return ", most often for lack of memory; see `dmesg`" if number == signal.SIGKILL else ""

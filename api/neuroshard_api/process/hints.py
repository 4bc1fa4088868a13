"""The remedy in an error's message: ``problem; hint: remedy`` in one line, as logs, conditions, and events keep it.

A terminal shows the remedy on its own line.
"""

import sys
from collections.abc import Iterable

from neuroshard_api.process.printable import printable

_ON_THE_LINE = "; hint: "
_OF_ITS_OWN = "hint: "


def in_lines(message: str) -> str:
    """Return a message for a terminal: its remedy on its own line, its control characters shown."""
    return printable(message).replace(_ON_THE_LINE, f"\n{_OF_ITS_OWN}")


def without_hint(message: str) -> str:
    """Return the problem alone, for a message that has its own remedy for it."""
    return message.partition(_ON_THE_LINE)[0]


def in_one_line(problems: Iterable[str]) -> str:
    """Return the sentences of several problems, and then their remedies, each once."""
    parts = [problem.partition(_ON_THE_LINE) for problem in problems]
    remedies = dict.fromkeys(remedy for _, _, remedy in parts if remedy)
    return "; ".join(problem for problem, _, _ in parts) + "".join(f"{_ON_THE_LINE}{remedy}" for remedy in remedies)


def last_message(lines: Iterable[str]) -> str:
    """Return the last line of a log, as one message with the line before it where it is a remedy. Empty: no lines."""
    newest = [line.strip() for line in lines if line.strip()][-2:]
    if len(newest) == 2 and newest[1].startswith(_OF_ITS_OWN):  # noqa: PLR2004 - the message and its remedy
        return "; ".join(newest)
    return newest[-1] if newest else ""


def say(sentence: str) -> None:
    """Tell people something next to the output, on stderr; a hint on its own line."""
    sys.stderr.write(f"{in_lines(sentence)}\n")

"""One child process that gets the signals we get. It inherits our streams; nothing is read from or written to it."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from neuroshard_api.process.failures import CommandError

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
KEPT = frozenset({signal.SIGTERM})
"""Signals that may be blocked when a command starts, to be unblocked once it has handlers: the kernel drops those of a
container's first process that have none. A child must not inherit the block."""
BY_SIGNAL = 128
"""Added to a signal's number, as shells do, it is the exit code of a process that the signal ended."""


@contextmanager
def child(argv: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start `argv` in its own session, and pass on to it the signals that arrive until the block ends.

    Raises:
        CommandError: there is no such program, or it cannot be run.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if started:
            send(started[0], number)
        else:
            early.append(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KEPT)
    try:
        try:
            started.append(subprocess.Popen(list(argv), start_new_session=True))  # noqa: S603 - the command that we were asked to run
        except OSError as error:
            raise CommandError(
                f"{argv[0]}: cannot be run: {error.strerror}; hint: check the command after `--`"
            ) from error
        for number in early:
            send(started[0], number)
        yield started[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def send(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a child; harmless when it has ended."""
    if process.poll() is None:
        os.kill(process.pid, number)


def exit_code(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of a child that has ended, as a shell would."""
    code = process.returncode
    return BY_SIGNAL - code if code < 0 else code

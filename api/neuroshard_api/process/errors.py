"""Errors that several rooms raise, named after what the caller should do; each has the exit code of its command.

ExpectedError
|-- InputError              fix the job, the plan, or the options
|   `-- DataError           fix the data: the message names the file, and line or column
|-- MissingPackageError     install the package that the message names
|-- StorageError            free space, or name another folder; then start again
`-- PeerLostError           another process is gone; read its log, then start again

Rooms derive their own errors from the base. Other exceptions are bugs.
"""

from typing import Self

from neuroshard_api.process.exit_codes import ExitCode


class ExpectedError(Exception):
    """Base of all errors that people can fix: the message has the problem, what was found, and a hint."""

    exit_code: ExitCode = ExitCode.INVALID_INPUT
    """Exit code of a command that fails for this reason."""

    def sentences(self) -> list[str]:
        """Return a sentence for each problem, with its own remedy; the message has all of them on one line."""
        return [str(self)]


class InputError(ExpectedError):
    """The job, the plan, the options, and the processes do not fit together."""


class DataError(InputError):
    """The data cannot be read, or has what the model cannot take."""


class MissingPackageError(ExpectedError):
    """An optional package is not installed."""

    exit_code = ExitCode.MISSING_PACKAGE


class StorageError(ExpectedError):
    """A file could not be written, mostly since a disk is full."""

    exit_code = ExitCode.STORAGE


ANOTHER_PROCESS = "another process"
"""Name of a lost rank that nothing tells from others."""


class PeerLostError(ExpectedError):
    """Another rank or node is gone, did not come, or does not answer."""

    exit_code = ExitCode.PEER_LOST

    @classmethod
    def of(cls, when: str, reason: str, lost: str = ANOTHER_PROCESS) -> Self:
        """Return the error for an operation in progress, the reason that the transport gives, and what it is about."""
        return cls(
            f"{when} {lost} was gone or did not answer ({reason}); "
            "hint: read the log of the process that ended first, then start all again"
        )

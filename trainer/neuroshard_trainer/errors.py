"""Errors of the trainer, named after what the caller should do; each has the exit code of the process.

TrainerError
|-- InputError        fix the job, the plan or the options
|   `-- DataError     fix the data: the message names file and line
|-- MissingPackageError   install the package that the message names
|-- StorageError      free space, or name another folder; then start again
|-- PeerLostError     another rank is gone; read its log, then start again
|-- CommunicationError    correct NCCL's surroundings: the message has its own words
`-- StoppedError      nothing: the trainer was asked to stop and did, with a checkpoint
"""

from typing import Self

from neuroshard_api.process.exit_codes import ExitCode


class TrainerError(Exception):
    """Base of all; the message says what is wrong, what was found and what to try."""

    exit_code = ExitCode.INTERNAL_ERROR


class InputError(TrainerError):
    """The job, the plan, the options and the processes do not fit together."""

    exit_code = ExitCode.INVALID_INPUT


class DataError(InputError):
    """The data cannot be read, or holds what the model cannot take."""


class MissingPackageError(TrainerError):
    """An optional package is not installed."""

    exit_code = ExitCode.MISSING_PACKAGE

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return the error for an import that failed; fbgemm-gpu without a driver fails to load its libraries."""
        return cls(
            f"torch, torchrec and fbgemm-gpu are needed, an import failed ({error}); hint: try "
            "pip install '.[trainer]' in a checkout, then `pip install --no-deps fbgemm-gpu torchrec` "
            "(fbgemm-gpu-cpu without a GPU) and what torchrec asks for"
        )


class StorageError(TrainerError):
    """A checkpoint or report could not be written."""

    exit_code = ExitCode.STORAGE


class PeerLostError(TrainerError):
    """A collective operation failed because another rank is gone or does not answer."""

    exit_code = ExitCode.PEER_LOST

    @classmethod
    def of(cls, when: str, reason: str) -> Self:
        """Return the error for something that was going on, and the reason that the transport gives."""
        return cls(
            f"{when} another process was gone or did not answer ({reason}); "
            "hint: read the log of the process that ended first, then start all again"
        )


class CommunicationError(TrainerError):
    """NCCL cannot be set up on this node: shared memory, network devices or driver do not suit it."""

    exit_code = ExitCode.COMMUNICATION


class StoppedError(TrainerError):
    """The trainer was asked to stop, and its state is saved."""

    exit_code = ExitCode.STOPPED

"""Errors of the trainer next to those of all rooms (`neuroshard_api.process.errors`).

ExpectedError
|-- CommunicationError    correct NCCL's surroundings: the message has its own words
`-- StoppedError          nothing: the trainer was asked to stop and did, with a checkpoint
"""

import os
import sys

from neuroshard_api.process.errors import ExpectedError, MissingPackageError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.generations import (
    VersionOf,
    installed_version,
    kernels_hint,
    mixed_generations,
    too_old_for_training,
)
from neuroshard_api.process.missing_package import install_hint


class CommunicationError(ExpectedError):
    """NCCL cannot be set up on this node: shared memory, network devices or driver do not suit it."""

    exit_code = ExitCode.COMMUNICATION


class StoppedError(ExpectedError):
    """The trainer was asked to stop, and its state is saved."""

    exit_code = ExitCode.STOPPED


def require_torchrec(version_of: VersionOf = installed_version) -> None:
    """Raise MissingPackageError where the installed TorchRec lacks what the trainer calls; warn of mixed releases.

    Rank 0 of each node warns. Asked before torch is imported, which fails in words of its own where releases are mixed.
    """
    too_old = too_old_for_training(version_of)
    if too_old is not None:
        raise MissingPackageError(too_old)
    mixed = mixed_generations(version_of)
    if mixed is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        sys.stderr.write(f"warning: {mixed}\n")


def missing_torchrec(error: Exception) -> MissingPackageError:
    """Return the error for an import that failed; fbgemm-gpu without a driver fails to load its libraries."""
    return MissingPackageError(
        f"torch, torchrec and fbgemm-gpu are needed, an import failed ({error}); hint: try "
        f"{install_hint('trainer')}, then {kernels_hint()}"
    )

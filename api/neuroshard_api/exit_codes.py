"""Exit codes of every command; docs/reference/exit-codes.md explains them. Append only, scripts depend on them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    """It did what was asked."""
    INTERNAL_ERROR = 1
    """A bug of ours."""
    INVALID_INPUT = 2
    """Wrong usage, a file that breaks its schema, or a place that cannot be written."""
    INFEASIBLE = 3
    """No plan fits the devices under the constraints."""
    UNUSABLE_BUNDLE = 4
    """The bundle of cost models is missing, damaged or of another version."""
    MISSING_PACKAGE = 5
    """An optional package that the command needs is not installed."""
    STORAGE = 6
    """A checkpoint or report could not be written: the disk is full or refuses."""
    PEER_LOST = 7
    """Another process of the training is gone or does not answer."""
    CLUSTER = 8
    """The Kubernetes API server cannot be reached, or refuses what was asked."""
    TOO_LARGE = 9
    """A result does not fit into a ConfigMap."""
    JOB_FAILED = 10
    """The job that was watched has failed."""
    COMMUNICATION = 11
    """NCCL could not be set up before the first step."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C (SIGINT)."""
    STOPPED = 143
    """Stopped by SIGTERM, with the state saved."""

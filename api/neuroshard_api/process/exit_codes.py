"""Exit codes of every command, each with its meaning and remedy. Append only: scripts depend on them.

The first paragraph below a code is its meaning and the second its remedy; `make tables` writes both into
docs/reference/exit-codes.md.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The way in which a command ended."""

    OK = 0
    """The command did what was asked."""
    INTERNAL_ERROR = 1
    """A bug of NeuroShard. A traceback is shown, in this case only.

    Report it with the command, its input, and the traceback.
    """
    INVALID_INPUT = 2
    """Wrong usage, a file that breaks its schema, a request that contradicts itself, or a place that cannot be written.

    Correct what the message names: it begins with the file, the option, or the field's path.
    """
    INFEASIBLE = 3
    """No plan fits the devices under the constraints.

    The message names the table or the device that binds, and the smallest change that would fit.
    """
    UNUSABLE_BUNDLE = 4
    """The bundle of cost models is missing, damaged, or made for another release.

    Copy it again, or make another with `neuroshard pretrain`.
    """
    MISSING_PACKAGE = 5
    """The command needs a package that is not installed, also in a pod: `python -m neuroshard_profiler`,
    `neuroshard_planner`, `neuroshard_trainer`, and its `launch`.

    Install what the message names.
    """
    STORAGE = 6
    """A checkpoint, a report, or a clustered log could not be written: the disk is full, or refuses. Earlier
    checkpoints are unchanged.

    Free space or name another folder, then start again.
    """
    PEER_LOST = 7
    """A process of the training ended, did not answer, or did not start in time; this one is fine. With
    `profile --meet`: the other node did not come.

    Read the log of the process that ended first, then restart all: they resume from the newest checkpoint.
    """
    CLUSTER = 8
    """The Kubernetes API server cannot be reached, or rejects the request.

    The message has its answer.
    """
    TOO_LARGE = 9
    """A result does not fit into a ConfigMap.

    Publish fewer or smaller files; the message names the largest.
    """
    JOB_FAILED = 10
    """The job that `status --watch` or `submit --watch` watched ended in Failed, or a stage of `neuroshard run`
    exceeded its `timeoutSeconds` or failed with a code that is not listed here.

    The message names the stage and the cause.
    """
    COMMUNICATION = 11
    """NCCL could not be set up before the first step: `/dev/shm` too small, no usable network device, two ranks on one
    GPU, or a driver that is too old.

    The message has NCCL's own words.
    """
    INTERRUPTED = 130
    """Ctrl-C (SIGINT). Output files are unchanged or complete.

    Run the same command again.
    """
    STOPPED = 143
    """The trainer received SIGTERM or SIGINT and stopped after a step, with a checkpoint.

    Start it again to resume.
    """

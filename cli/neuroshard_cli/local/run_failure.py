"""The error that ends a failed run, by the status that decisions left."""

from neuroshard_api.job.status import Status
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError
from neuroshard_decisions.conditions import Reason

from neuroshard_cli.local.stage_runner import StageFailedError

_LATE = {Reason.DEADLINE_EXCEEDED, Reason.NOT_RUNNING_IN_TIME}
_WRONG_INPUT = {Reason.INVALID_INPUT, Reason.INVALID_TEMPLATE, Reason.WORLD_SIZE_MISMATCH, Reason.MODEL_MISMATCH}


def failure_of_run(status: Status, failed: StageFailedError | None) -> CommandError:
    """Return the error of a run that is not tried again.

    Args:
        status: of the run.
        failed: stage that ended last. None: it succeeded.
    """
    reason, message = status.reason or "", status.message or ""
    if reason in _LATE:
        hint = "hint: raise it, or give the command again: the run resumes, and its deadlines begin again"
        return CommandError(f"{message}; {hint}", ExitCode.JOB_FAILED)
    if failed is not None:
        return failed
    return CommandError(message, ExitCode.INVALID_INPUT if reason in _WRONG_INPUT else ExitCode.JOB_FAILED)

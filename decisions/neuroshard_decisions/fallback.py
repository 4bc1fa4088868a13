"""Whether a fallback algorithm may plan after the planner failed.

An algorithm may fail, exhaust memory or time, or find no plan, where another one succeeds. Input, cost models, packages
and storage are the same for every algorithm, so these failures end the job at once, with their own sentence.
"""

from neuroshard_api.process.exit_codes import ExitCode

_SAME_FOR_EVERY_ALGORITHM = frozenset(
    {
        ExitCode.INVALID_INPUT,
        ExitCode.UNUSABLE_BUNDLE,
        ExitCode.MISSING_PACKAGE,
        ExitCode.STORAGE,
        ExitCode.CLUSTER,
    }
)


def may_fall_back(exit_code: int | None, *, timed_out: bool) -> bool:
    """Return whether the fallback plans after a planner that failed.

    Args:
        exit_code: of the planner's process, above 128 after a signal. None: unknown, as of a pod that is gone.
        timed_out: whether the planner's timeoutSeconds ended it; the exit code then only tells how it was stopped.
    """
    return timed_out or exit_code not in _SAME_FOR_EVERY_ALGORITHM

"""The deadlines of `spec.runPolicy`, counted from the start of the job or its last resumption. Pure functions."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from neuroshard_api.job.policies import RunPolicy
from neuroshard_api.job.status import StageName, Status


@dataclass(frozen=True, kw_only=True, slots=True)
class MissedDeadline:
    """A deadline that has passed; the job fails."""

    is_of_start: bool
    """Whether the workers did not run in time, and not the whole job."""
    message: str


def missed_deadline(policy: RunPolicy, status: Status, now: datetime) -> MissedDeadline | None:
    """Return the deadline that a job which has not ended missed. None: it missed none, or has not started."""
    started, limit_s = status.start_time, policy.active_deadline_seconds
    if started is None:
        return None
    if limit_s is not None and now >= started + timedelta(seconds=limit_s):
        message = f"the job took longer than runPolicy.activeDeadlineSeconds ({limit_s} s)"
        return MissedDeadline(is_of_start=False, message=message)
    limit_s = policy.pre_running_deadline_seconds
    if limit_s is not None and not _ran(status) and now >= started + timedelta(seconds=limit_s):
        doing = f"; last message: {status.message}" if status.message else ""
        message = f"the workers did not all run within runPolicy.preRunningDeadlineSeconds ({limit_s} s){doing}"
        return MissedDeadline(is_of_start=True, message=message)
    return None


def next_deadline(policy: RunPolicy, status: Status) -> datetime | None:
    """Return the next deadline. None: there is none."""
    started = status.start_time
    if started is None:
        return None
    limits_s = [policy.active_deadline_seconds, None if _ran(status) else policy.pre_running_deadline_seconds]
    return min((started + timedelta(seconds=limit) for limit in limits_s if limit is not None), default=None)


def _ran(status: Status) -> bool:
    """Return whether all workers ran at one time."""
    return any(each.name is StageName.RUNNING and each.start_time is not None for each in status.stages)

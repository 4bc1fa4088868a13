"""The next attempt after a failure of workers: its number, whether it counts, and its pause. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.job.policies import FailureAction, FailurePolicy
from neuroshard_api.job.status import LastFailure, Status
from neuroshard_api.lifecycle.failures import NO_PROGRESS, FailureCause, FailureVerdict

FIRST_PAUSE_S = 10.0
"""Before the second restart that counts; the first follows at once. Each further pause is twice as long."""
LONGEST_PAUSE_S = 300.0
HEALTHY_AFTER = timedelta(hours=1)
"""Time without a failure after which earlier restarts no longer count towards maxRestarts."""
UNCOUNTED_PAUSE = timedelta(seconds=30)
"""Between restarts that do not count, where the workers ran for less than `QUICK`: nothing else bounds their number."""
QUICK = timedelta(minutes=10)
MORE_RESERVE = 0.05
"""Share of a device's memory that each ReplanAndRestart holds back more: an equal request would get an equal plan."""
MOST_RESERVE = 0.9
_PERCENT = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """An attempt that has failed."""

    number: int
    """From 0 on."""
    healthy: timedelta
    """How long all of its workers trained."""
    never_ran: bool = False
    """Whether it ended before any container ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextAttempt:
    """All workers start again."""

    number: int
    """Of the next attempt."""
    counted: int
    """Restarts that count towards maxRestarts, this one included if it does."""
    pause: timedelta
    replans: bool
    """Whether the failure rule asks for another plan."""
    message: str

    def status_fields(self, failure: LastFailure, now: datetime) -> Mapping[str, object]:
        """Return the fields of the status that record the restart."""
        return {
            "restarts": self.number,
            "restarts_count_towards_max": self.counted,
            "last_failure": failure,
            "next_start_time": (failure.time or now) + self.pause if self.pause else None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenUp:
    """The job fails."""

    too_many: bool
    """Whether maxRestarts ends it, and not a failure rule."""
    message: str


def after_failure(
    policy: FailurePolicy, status: Status, attempt: Attempt, decided: FailureVerdict, *, what: str, note: str = ""
) -> NextAttempt | GivenUp:
    """Return the next attempt after a failure, or the end of the job.

    Args:
        policy: of the job.
        status: as earlier failures left it.
        attempt: that failed.
        decided: the policy's verdict on the cause.
        what: the failure in a sentence.
        note: what else people should know of a restart, at the end of its message.
    """
    counted, most = _counted_before(status, attempt.healthy), policy.max_restarts
    if decided.action is FailureAction.FAIL_JOB:
        return GivenUp(too_many=False, message=f"{what} (failure rule: {decided.rule})")
    if decided.counts and counted >= most:
        message = f"the workers failed after {counted} of at most {most} restarts; the last time {what}"
        return GivenUp(too_many=True, message=message)
    counted += decided.counts
    counting = f"restart {counted} of {most}" if decided.counts else "not counted"
    return NextAttempt(
        number=attempt.number + 1,
        counted=counted,
        pause=_pause(status, attempt, decided, counted),
        replans=decided.action is FailureAction.REPLAN_AND_RESTART,
        message=f"restarting all workers ({counting}, failure rule: {decided.rule}): {what}{note}",
    )


def no_progress(policy: FailurePolicy, last: datetime | None, now: datetime) -> FailureCause | None:
    """Return the cause of a restart of workers that hang. None: they do not.

    Args:
        policy: of the job.
        last: report of progress, or the workers' readiness where that is later. None: they never report.
        now: the present time.
    """
    due = progress_due(policy, last)
    if due is None or last is None or now < due:
        return None
    limit_s = policy.progress_timeout_seconds
    return FailureCause(
        reason=NO_PROGRESS,
        message=f"no progress was reported since {last:%H:%M:%S} UTC (failurePolicy.progressTimeoutSeconds {limit_s})",
        time=now,
    )


def progress_due(policy: FailurePolicy, last: datetime | None) -> datetime | None:
    """Return the time until which workers must report progress. None: there is no limit, or they never report."""
    limit_s = policy.progress_timeout_seconds
    return None if limit_s is None or last is None else last + timedelta(seconds=limit_s)


HUNG = FailureVerdict(action=FailureAction.RESTART_JOB, rule="progressTimeoutSeconds")
"""The verdict on workers that hang."""


def with_more_reserve(request: PlanRequest, num_replans: int) -> PlanRequest:
    """Return the request with more memory kept free for each time that another plan was asked for."""
    share = min(MORE_RESERVE * num_replans, MOST_RESERVE)
    kept_free = request.memory.reserve_bytes + int(share * request.topology.device.memory_bytes)
    return request.model_copy(update={"memory": request.memory.model_copy(update={"reserve_bytes": kept_free})})


def reserve_note(num_replans: int) -> str:
    """Return in a sentence how much memory plans keep free since another one was asked for that often."""
    percent = _PERCENT * min(MORE_RESERVE * num_replans, MOST_RESERVE)
    times = "once" if num_replans == 1 else f"{num_replans} times"
    return f"{percent:.0f} % of each device's memory stays free, since a failure rule asked for another plan {times}"


def _counted_before(status: Status, healthy: timedelta) -> int:
    """Return the restarts that count towards the maximum, none of them once the workers trained for long enough."""
    if healthy >= HEALTHY_AFTER:
        return 0
    return status.restarts_count_towards_max or 0


def _pause(status: Status, attempt: Attempt, decided: FailureVerdict, counted: int) -> timedelta:
    """Return the delay of the next attempt: longer with each failure that counts, and between quick disruptions.

    Where no container ran, as on a node that boots, it doubles from one such failure to the next.
    """
    if attempt.never_ran and not decided.counts:
        last, again = status.last_failure, status.next_start_time
        before = timedelta(0)
        if last is not None and last.container_name is None and last.time is not None and again is not None:
            before = again - last.time
        return min(max(2 * before, timedelta(seconds=FIRST_PAUSE_S)), timedelta(seconds=LONGEST_PAUSE_S))
    if decided.counts:
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(counted - 2, 30), LONGEST_PAUSE_S) if counted > 1 else 0.0
        return timedelta(seconds=pause_s)
    uncounted = attempt.number + 1 - (status.restarts_count_towards_max or 0)
    return timedelta(0) if uncounted <= 1 or attempt.healthy >= QUICK else UNCOUNTED_PAUSE

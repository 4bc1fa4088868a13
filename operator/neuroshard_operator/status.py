"""The status that earlier looks wrote: read leniently, and written anew from what this look found. Calls no API."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from neuroshard_api.document import DocumentError, validated
from neuroshard_api.job_status import Stage, StageName, StageState, StageStatus, Status

from neuroshard_operator.conditions import ConditionType, Reason, Says, holds, merged
from neuroshard_operator.context import View
from neuroshard_operator.stages.result import Course, Step

MESSAGE_CHARACTERS = 4096
_ENDED = (StageState.SUCCEEDED, StageState.FAILED, StageState.SKIPPED)


def read_status(raw: Mapping[str, Any]) -> Status:
    """Return the recorded status. Fields that another release wrote and this one cannot read are left out."""
    try:
        return validated(Status, dict(raw), where="status")
    except DocumentError:
        readable = {key: value for key, value in raw.items() if _is_readable(key, value)}
        return validated(Status, readable, where="status")


def _is_readable(key: str, value: object) -> bool:
    try:
        validated(Status, {key: value}, where="status")
    except DocumentError:
        return False
    return True


def has_ended(status: Status) -> bool:
    """Return whether the job ended before; nothing undoes that."""
    return any(holds(status.conditions, kind) for kind in (ConditionType.SUCCEEDED, ConditionType.FAILED))


def needs_profile(raw: Mapping[str, Any]) -> bool:
    """Return whether a job has no plan yet, or none any more: a profile that comes or goes may be its own."""
    said = {each["type"]: each["status"] for each in raw.get("conditions", ())}
    planned, profiled = said.get(ConditionType.PLANNED), said.get(ConditionType.PROFILED)
    return "completionTime" not in raw and (planned != "True" or profiled == "False")


def new_status(view: View, steps: Sequence[Step]) -> Status:
    """Return the status after a look whose steps were these; the last one is what people see."""
    last, before, now = steps[-1], view.status, view.now
    end = last.end
    rests = last.shown is Stage.SUSPENDED
    facts: dict[str, Any] = {
        "restarts": before.restarts or 0,
        "restarts_count_towards_max": before.restarts_count_towards_max or 0,
        "start_time": None if rests else before.start_time or now,
    }
    for step in steps:
        facts.update(step.facts)
    found = [says for step in steps for says in step.says]
    found += _resumed(view, found)
    stage, reason, message = last.shown, last.reason, last.message
    if end is not None:
        stage, reason, message = Stage.SUCCEEDED if end.succeeded else Stage.FAILED, end.reason, end.message
        kind = ConditionType.SUCCEEDED if end.succeeded else ConditionType.FAILED
        found.append(Says(type=kind, holds=True, reason=end.reason, message=end.message))
        facts["completion_time"] = now
        facts["last_failure"] = end.failure or facts.get("last_failure", before.last_failure)
    return before.model_copy(
        update={
            **facts,
            "observed_generation": view.observed.job.generation,
            "stage": stage,
            "reason": reason.value,
            "message": message[:MESSAGE_CHARACTERS],
            "conditions": merged(before.conditions, found, now=now, generation=view.observed.job.generation),
            "stages": _courses(before.stages, [course for step in steps for course in step.courses], now),
        }
    )


def _resumed(view: View, found: Iterable[Says]) -> list[Says]:
    """Return that the job is not suspended any more, if it was and nothing says that it still is."""
    was = holds(view.status.conditions, ConditionType.SUSPENDED)
    still = any(says.type is ConditionType.SUSPENDED for says in found)
    if was is None or still:
        return []
    return [Says(type=ConditionType.SUSPENDED, holds=False, reason=Reason.RESUMED, message="the job goes on")]


def _courses(recorded: Sequence[StageStatus], courses: Iterable[Course], now: datetime) -> tuple[StageStatus, ...]:
    by_name = {each.name: each for each in recorded}
    for course in courses:
        by_name[course.stage] = _course(by_name.get(course.stage), course, now)
    return tuple(by_name[name] for name in StageName if name in by_name)


def _course(before: StageStatus | None, course: Course, now: datetime) -> StageStatus:
    known = before or StageStatus(name=course.stage)
    if course.again or (known.state in _ENDED and course.state is StageState.ACTIVE):
        known = known.model_copy(update={"start_time": None, "completion_time": None})
    begins = course.state is StageState.ACTIVE and known.start_time is None
    ends = course.state in _ENDED
    started = known.start_time or (now if begins or course.state is StageState.SUCCEEDED else None)
    completed = (known.completion_time if known.state is course.state else None) or now
    return StageStatus(
        name=course.stage,
        state=course.state,
        attempts=(known.attempts or 0) + 1 if begins else known.attempts,
        start_time=started,
        completion_time=completed if ends else None,
        job_name=course.job_name or known.job_name,
        message=course.message[:MESSAGE_CHARACTERS] if course.message else None,
    )

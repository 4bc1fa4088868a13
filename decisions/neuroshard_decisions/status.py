"""The status that earlier passes wrote: read leniently, and written again from what this pass found. Calls no API."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from neuroshard_api.documents.document import DocumentError, validated_without_unknown
from neuroshard_api.job.status import Stage, StageName, StageState, StageStatus, Status

from neuroshard_decisions.conditions import (
    MESSAGE_CHARACTERS,
    ConditionType,
    ConditionUpdate,
    Reason,
    WarningUpdate,
    holds,
    merged,
    merged_warnings,
    warnings_among,
)
from neuroshard_decisions.context import Context
from neuroshard_decisions.stages.result import StageResult, StageUpdate

SHOWN_FIELDS = 5
_ENDED = (StageState.SUCCEEDED, StageState.FAILED, StageState.SKIPPED)


def read_status(raw: Mapping[str, Any]) -> Status:
    """Return the recorded status. What another release wrote and this one cannot read is left out."""
    try:
        return validated_without_unknown(Status, dict(raw), where="status")[0]
    except DocumentError:
        readable = {key: value for key, value in raw.items() if _is_readable(key, value)}
        return validated_without_unknown(Status, readable, where="status")[0]


def _is_readable(key: str, value: object) -> bool:
    try:
        validated_without_unknown(Status, {key: value}, where="status")
    except DocumentError:
        return False
    return True


def has_ended(status: Status) -> bool:
    """Return whether the job ended before; nothing undoes that."""
    ended = any(holds(status.conditions, kind) for kind in (ConditionType.SUCCEEDED, ConditionType.FAILED))
    return ended or status.completion_time is not None


def needs_profile(raw: Mapping[str, Any]) -> bool:
    """Return whether a job has no plan yet, or none any more: a profile that comes or goes may be its own."""
    conditions = raw.get("conditions")
    found = [each for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
    said = {str(each.get("type")): each.get("status") for each in found}
    planned, profiled = said.get(ConditionType.PLANNED), said.get(ConditionType.PROFILED)
    return "completionTime" not in raw and (planned != "True" or profiled == "False")


def new_status(context: Context, results: Sequence[StageResult]) -> Status:
    """Return the status after a pass whose results were these; the last one is what people see."""
    last, before, now = results[-1], context.status, context.now
    end = last.completion
    rests = last.display_stage is Stage.SUSPENDED
    status_fields: dict[str, Any] = {
        "restarts": max(before.restarts or 0, context.attempt),
        "restarts_count_towards_max": before.restarts_count_towards_max or 0,
        "start_time": None if rests else before.start_time or now,
    }
    for result in results:
        status_fields.update(result.status_fields)
    found = [update for result in results for update in result.conditions]
    found += _resumed(context, found)
    warnings = [update for result in results for update in result.warnings]
    stage, reason, message = last.display_stage, last.reason, last.message
    if end is not None:
        stage, reason, message = Stage.SUCCEEDED if end.succeeded else Stage.FAILED, end.reason, end.message
        kind = ConditionType.SUCCEEDED if end.succeeded else ConditionType.FAILED
        found.append(ConditionUpdate(type=kind, holds=True, reason=end.reason, message=end.message))
        status_fields["completion_time"] = now
        status_fields["last_failure"] = end.failure or status_fields.get("last_failure", before.last_failure)
    return before.model_copy(
        update={
            **status_fields,
            "observed_generation": context.observed.job.generation,
            "stage": stage,
            "reason": reason.value,
            "message": message[:MESSAGE_CHARACTERS],
            "conditions": merged(before.conditions, found, now=now, generation=context.observed.job.generation),
            "warnings": merged_warnings(before.warnings, [*warnings, *_about_the_spec(context)], now=now),
            "stages": _stages(before.stages, [update for result in results for update in result.stage_updates], now),
        }
    )


def _resumed(context: Context, found: Iterable[ConditionUpdate]) -> list[ConditionUpdate]:
    """Return that the job is not suspended any more, if it was and nothing update that it still is."""
    was = holds(context.status.conditions, ConditionType.SUSPENDED)
    still = any(update.type is ConditionType.SUSPENDED for update in found)
    if was is None or still:
        return []
    return [
        ConditionUpdate(type=ConditionType.SUSPENDED, holds=False, reason=Reason.RESUMED, message="the job has resumed")
    ]


def _about_the_spec(context: Context) -> tuple[WarningUpdate, ...]:
    """Return the warnings about a spec that another release than this one let in."""
    found: dict[Reason, str] = {}
    if context.broken_rules:
        rules = "; ".join(context.broken_rules)
        found[Reason.INVALID_SPEC] = f"this release refuses the spec, which an earlier one let in: {rules}"
    if context.ignored:
        shown = ", ".join(context.ignored[:SHOWN_FIELDS]) + (", ..." if len(context.ignored) > SHOWN_FIELDS else "")
        found[Reason.NEWER_DEFINITION] = (
            f"the definition is newer than this operator, which passes over: {shown}; hint: upgrade the operator"
        )
    return warnings_among((Reason.INVALID_SPEC, Reason.NEWER_DEFINITION), found)


def _stages(
    recorded: Sequence[StageStatus], stage_updates: Iterable[StageUpdate], now: datetime
) -> tuple[StageStatus, ...]:
    by_name = {each.name: each for each in recorded}
    for update in stage_updates:
        by_name[update.stage] = _stage(by_name.get(update.stage), update, now)
    return tuple(by_name[name] for name in StageName if name in by_name)


def _stage(before: StageStatus | None, update: StageUpdate, now: datetime) -> StageStatus:
    known = before or StageStatus(name=update.stage)
    if update.restarted or (known.state in _ENDED and update.state is StageState.ACTIVE):
        known = known.model_copy(update={"start_time": None, "completion_time": None})
    begins = update.state is StageState.ACTIVE and known.start_time is None
    ends = update.state in _ENDED
    started = known.start_time or (now if begins or update.state is StageState.SUCCEEDED else None)
    completed = (known.completion_time if known.state is update.state else None) or now
    return StageStatus(
        name=update.stage,
        state=update.state,
        attempts=(known.attempts or 0) + 1 if begins else known.attempts,
        start_time=started,
        completion_time=completed if ends else None,
        job_name=update.job_name or known.job_name,
        message=update.message[:MESSAGE_CHARACTERS] if update.message else None,
    )

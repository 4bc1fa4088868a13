"""Whether steps take as long as at the beginning, as the workers report it: the condition Steady. Pure functions."""

from dataclasses import replace

from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.conditions import ConditionType, ConditionUpdate, Reason, is_false
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.results import DriftSummary
from neuroshard_decisions.stages.planning import Planned
from neuroshard_decisions.stages.reports import is_of_another_attempt, latest
from neuroshard_decisions.stages.result import StageResult, condition, training_goes_on


def drift_of(context: Context, planned: Planned) -> DriftSummary | None:
    """Return the drift report of the present attempt under the plan in force. None: there is none."""
    report = latest(context)
    drift = report.drift if report else None
    if drift is None or drift.plan_hash != planned.summary.hash or is_of_another_attempt(context, drift.reported_by):
        return None
    return drift


def steady(context: Context, drift: DriftSummary | None) -> StageResult:
    """Return whether steps are steady, and an event where they no longer are; nothing before the workers report it."""
    kind, report = ConditionType.STEADY, latest(context)
    if drift is None:
        problem = report.drift_problem if report else ""
        unusable = ConditionUpdate(type=kind, holds=None, reason=Reason.REPORT_UNUSABLE, message=problem)
        return replace(training_goes_on(), conditions=(unusable,) if problem else ())
    if drift.headline is None:
        message = "steps take as long as in the first steps under the plan"
        return replace(training_goes_on(), conditions=(condition(kind, Reason.WITHIN_REFERENCE, message, holds=True),))
    reason = Reason(drift.changes[0].cause.value)
    found = condition(kind, reason, drift.headline, holds=False)
    is_known = is_false(context.status.conditions, kind) and any(
        each.type == kind and each.reason == reason for each in context.status.conditions
    )
    events = () if is_known else (Event(reason=EventReason.DRIFT_DETECTED, message=drift.headline),)
    return replace(training_goes_on(), conditions=(found,), events=events)

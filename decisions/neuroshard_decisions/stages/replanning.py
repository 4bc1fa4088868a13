"""Another plan for a job that trains: it is made while training goes on, decided on by recorded facts, and then taken.

    inputs drifted -> candidate recorded -> reports copied -> planner Job -> verdict recorded -> accepted, where it pays

Each arrow is a separate pass, whose result is in the status or in a child, so that an operator that starts in between
goes on from there. Accepting changes the plan's inputs hash: the plan is then found among the planners' results, and
launching replaces the workers, which write a checkpoint and resume from it.
"""

from dataclasses import replace

from neuroshard_api.documents.drift_report import DriftChange, SlowdownCause, first_change
from neuroshard_api.job.replanning import CandidatePlan, ReplanningMode, ReplanningStatus
from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION
from neuroshard_api.replanning.decision import ReplanDecision, ReplanVerdict, decide
from neuroshard_api.replanning.record import (
    MESSAGE_CHARACTERS,
    is_candidate_due,
    judged,
    next_to_plan_in_force,
    with_candidate_asked,
    with_candidate_taken,
)
from neuroshard_api.replanning.support import replanning_policy, unsupported

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, CandidateInputs, Delete, Event, EventReason, Keep
from neuroshard_decisions.conditions import ConditionType, ConditionUpdate, Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.results import DriftSummary, PlanResult, ReportSummary
from neuroshard_decisions.stages.corrected_models import cost_models
from neuroshard_decisions.stages.planning import candidate_plan, plan_candidate
from neuroshard_decisions.stages.reports import latest
from neuroshard_decisions.stages.result import StageResult, condition, training_goes_on
from neuroshard_decisions.stages.training import TrainingWorkers

_RETURNED = "inputs are as the plan in force was made for"
_CURRENT = {ReplanVerdict.NO_BETTER_PLAN, ReplanVerdict.GAIN_TOO_SMALL}


def is_planning_candidate(context: Context) -> bool:
    """Return whether a candidate was asked for, and nothing came of it yet."""
    candidate = _recorded(context).candidate
    may_plan = not _is_off(context) and unsupported(context.spec) is None
    return candidate is not None and candidate.verdict is None and may_plan


def replan(training: TrainingWorkers, *, candidate_hash: str | None) -> StageResult:
    """Return the result for the drift report of workers that train.

    Args:
        training: of the pass.
        candidate_hash: inputs hash of the candidate that the status names. None: it names none.
    """
    drift = training.drift
    if drift is None or _is_off(training.context):
        step = training_goes_on()
    else:
        step = _candidate_step(training, drift, candidate_hash)
    if training.record != _recorded(training.context) and "replanning" not in step.status_fields:
        step = replace(step, status_fields={**step.status_fields, "replanning": training.record})
    return step


def _recorded(context: Context) -> ReplanningStatus:
    return context.status.replanning or ReplanningStatus()


def _is_off(context: Context) -> bool:
    """Return whether nothing is to be decided: candidates are switched off, or the spec is refused."""
    return context.spec.replanning.mode is ReplanningMode.OFF or bool(context.broken_rules)


def _not_planned(change: DriftChange, why: str) -> StageResult:
    """Return that inputs drifted, and that no candidate is made for that."""
    message = f"inputs drifted since step {change.since_step:,}, and no plan is made for them: {why}"
    return replace(training_goes_on(), conditions=(_unknown(Reason.CANDIDATE_UNSUPPORTED, message),))


def _no_change(context: Context) -> StageResult:
    """Return that inputs are as planned for, where the condition says that no candidate is made for a change."""
    kind = ConditionType.PLAN_CURRENT
    shown = any(each.type == kind and each.reason == Reason.CANDIDATE_UNSUPPORTED for each in context.status.conditions)
    returned = condition(kind, Reason.INPUTS_RETURNED, _RETURNED, holds=True)
    return replace(training_goes_on(), conditions=(returned,) if shown else ())


def _candidate_step(training: TrainingWorkers, drift: DriftSummary, candidate_hash: str | None) -> StageResult:
    context, candidate = training.context, training.record.candidate
    change = first_change(drift.changes, SlowdownCause.INPUTS_DRIFTED)
    why = unsupported(context.spec)
    if why is not None:
        return _no_change(context) if change is None else _not_planned(change, why)
    found = None if candidate_hash is None else candidate_plan(context, candidate_hash)
    if candidate is not None and candidate_hash is not None and candidate.verdict is None and found is None:
        return _planning(training, candidate, candidate_hash)
    is_approved = found is not None and _is_approved(context, found)
    if change is not None and not is_approved and _is_due(context, candidate, change):
        return _further(training, change, candidate, candidate_hash)
    if candidate is None or found is None:  # none was made, or somebody deleted it: the next change makes another one
        return _no_change(context) if change is None else training_goes_on()
    if change is None:
        return _settled(training, candidate, Reason.INPUTS_RETURNED, _RETURNED)
    # A candidate for an earlier change decides nothing about this one.
    is_asked_for = change.since_step == candidate.since_step or is_approved
    return _evaluated(training, drift, candidate, found) if is_asked_for else training_goes_on()


def _further(
    training: TrainingWorkers, change: DriftChange, candidate: CandidatePlan | None, candidate_hash: str | None
) -> StageResult:
    """Return the start of another candidate, where one can be made for the change."""
    report = latest(training.context)
    if report is not None and report.unsupported_inputs is not None:
        return _not_planned(change, report.unsupported_inputs)
    return replace(_asked(training, change), actions=_superseded(training.context, candidate, candidate_hash))


def _is_due(context: Context, candidate: CandidatePlan | None, change: DriftChange) -> bool:
    """Return whether a candidate is to be made for a change: the reports are there, and it is not too often."""
    report = latest(context)
    if report is None or report.statistics_key is None:
        return False
    if candidate is None:
        return True
    return is_candidate_due(candidate, since_step=change.since_step, now=context.now)


def _asked(training: TrainingWorkers, change: DriftChange) -> StageResult:
    """Record a candidate; the next pass begins to make it."""
    recorded = with_candidate_asked(training.record, since_step=change.since_step, now=training.context.now)
    return replace(training_goes_on(), status_fields={"replanning": recorded}, requeue_after_s=0.1)


def _superseded(context: Context, candidate: CandidatePlan | None, candidate_hash: str | None) -> tuple[Action, ...]:
    """Return the actions that delete a rejected candidate's children, which would pile up under lasting drift."""
    if candidate is None or candidate_hash is None:
        return ()
    planner = names.planner_job(context.name, candidate_hash)
    job = context.job_named(planner)
    own = (
        names.inputs(context.name, candidate.number),
        names.request(context.name, candidate_hash),
        names.result(planner),
    )
    maps = [found for name in own if (found := context.config_map(name)) is not None]
    return (
        *(() if job is None else (Delete(kind="Job", name=planner, uid=job.meta.uid),)),
        *(Delete(kind="ConfigMap", name=each.meta.name, uid=each.meta.uid) for each in maps),
    )


def _planning(training: TrainingWorkers, candidate: CandidatePlan, candidate_hash: str) -> StageResult:
    """Return the result that makes the candidate: copies of the reports that it is for, and its planner."""
    context, planned = training.context, training.planned
    kept = context.config_map(names.inputs(context.name, candidate.number))
    if kept is None:
        return _reports_kept(context, candidate)
    document = kept.document
    if not isinstance(document, ReportSummary) or document.statistics_key is None:
        return _failed(training, candidate, f"ConfigMap {kept.meta.name} has no input statistics that can be read")
    step, profiled = cost_models(context)
    if profiled is None:
        return _failed(training, candidate, f"there are no cost models any more: {step.message}")
    in_force = CandidateInputs(
        plan=planned.name,
        plan_key=planned.summary.key,
        inputs=kept.meta.name,
        inputs_key=document.statistics_key,
    )
    made = plan_candidate(context, candidate_hash, profiled, in_force)
    if made.completion is not None:
        return _failed(training, candidate, made.message)
    return replace(
        training_goes_on(),
        conditions=(_unknown(Reason.CANDIDATE_PLANNING, f"for the changed inputs, {made.message}"),),
        actions=made.actions,
        events=made.events,
        requeue_after_s=made.requeue_after_s,
    )


def _reports_kept(context: Context, candidate: CandidatePlan) -> StageResult:
    report = context.config_map(names.report(context.name))
    found = latest(context)
    if report is None or found is None or found.statistics_key is None:  # deleted since; the workers write it again
        return training_goes_on()
    keep = Keep(
        name=names.inputs(context.name, candidate.number),
        role=names.INPUTS,
        source=report.meta.name,
        source_version=report.meta.resource_version,
    )
    message = "the reports that a plan for the changed inputs is made from are kept"
    return replace(training_goes_on(), conditions=(_unknown(Reason.CANDIDATE_PLANNING, message),), actions=(keep,))


def _failed(training: TrainingWorkers, candidate: CandidatePlan, why: str) -> StageResult:
    """Record that there is no candidate; training goes on under the plan in force."""
    message = f"no plan was made for the changed inputs: {why}"[:MESSAGE_CHARACTERS]
    failed = candidate.model_copy(update={"verdict": Reason.CANDIDATE_FAILED.value, "message": message})
    return replace(
        training_goes_on(),
        conditions=(_unknown(Reason.CANDIDATE_FAILED, message),),
        status_fields={"replanning": training.record.model_copy(update={"candidate": failed})},
    )


def _unknown(reason: Reason, message: str) -> ConditionUpdate:
    return ConditionUpdate(type=ConditionType.PLAN_CURRENT, holds=None, reason=reason, message=message)


def _evaluated(
    training: TrainingWorkers, drift: DriftSummary, candidate: CandidatePlan, found: PlanResult
) -> StageResult:
    """Return the verdict about a candidate that was made, and the change to it where it is to be taken."""
    context, measured_us = training.context, training.measured_us
    if measured_us is None or found.total_ms is None or found.incumbent_ms is None:
        return training_goes_on()  # the next report of step times decides
    name = names.plan(context.name, found.hash)
    decision = decide(
        next_to_plan_in_force(
            training.record,
            placement_hash=found.placement_hash,
            in_force_hash=training.planned.summary.placement_hash,
            measured_us=measured_us,
            predicted_ms=found.total_ms,
            incumbent_ms=found.incumbent_ms,
            reference_ms=drift.reference_embedding_ms,
            planned_ms=training.planned_ms,
            is_host_bound=training.is_host_bound,
        ),
        training.restart(drift),
        replanning_policy(context.spec),
        is_approved=_is_approved(context, found),
    )
    priced = judged(candidate, decision, total_ms=found.total_ms, incumbent_ms=found.incumbent_ms)
    priced = priced.model_copy(update={"plan_name": name, "hash": f"sha256:{found.hash}"})
    if decision.acts:
        return _taken(training, priced, found, decision)
    message = decision.message
    if decision.verdict not in _CURRENT:
        message = f"{message}; to take it: {context.approval_of(name)}"
    return _settled(training, priced, Reason(decision.verdict.value), message, is_current=decision.verdict in _CURRENT)


def _is_approved(context: Context, found: PlanResult) -> bool:
    name = names.plan(context.name, found.hash)
    return context.observed.job.annotations.get(APPROVED_PLAN_ANNOTATION) == name


def _settled(
    training: TrainingWorkers, candidate: CandidatePlan, reason: Reason, message: str, *, is_current: bool = True
) -> StageResult:
    """Record a verdict. Numbers of one that stays are kept: they change with each report."""
    if candidate.verdict == reason.value:
        return training_goes_on()
    message = message[:MESSAGE_CHARACTERS]
    settled = candidate.model_copy(update={"verdict": reason.value, "message": message})
    pays = reason is Reason.BETTER_PLAN_FOUND
    return replace(
        training_goes_on(),
        conditions=(condition(ConditionType.PLAN_CURRENT, reason, message, holds=is_current),),
        events=(Event(reason=EventReason.BETTER_PLAN_FOUND, message=message),) if pays else (),
        status_fields={"replanning": training.record.model_copy(update={"candidate": settled})},
    )


def _taken(
    training: TrainingWorkers, candidate: CandidatePlan, found: PlanResult, decision: ReplanDecision
) -> StageResult:
    """Record that the candidate is the job's plan from now on; the passes after this one replace the workers."""
    context = training.context
    message = f"plan {candidate.plan_name} takes the place of {training.planned.name}: {decision.message}"
    message = message[:MESSAGE_CHARACTERS]
    recorded = with_candidate_taken(
        training.record,
        candidate,
        decision,
        placement_hash=found.placement_hash,
        in_force=training.entry(Reason.PLAN_WRITTEN),
        measured_us=training.measured_us,
        message=message,
        from_step=None if training.drift is None else training.drift.last_step,
        now=context.now,
    )
    return replace(
        training_goes_on(),
        conditions=(condition(ConditionType.PLAN_CURRENT, Reason.PLAN_REPLACED, message, holds=True),),
        events=(Event(reason=EventReason.PLAN_REPLACED, message=message),),
        status_fields={"replanning": recorded},
        requeue_after_s=0.1,
    )

"""All decisions: from one pass at a job to what is wanted. A pure function; repeating it changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from neuroshard_api.document import DocumentError
from neuroshard_api.job_status import Hardware, Stage, StageName, Status
from neuroshard_api.training_job import API_VERSION, KIND, OPERATOR, DLRMTrainingJob

from neuroshard_operator.actions import Decision, Event, Reads
from neuroshard_operator.conditions import ConditionType, ConditionUpdate, Reason, holds, merged
from neuroshard_operator.context import Context, earliest, seconds_until
from neuroshard_operator.observed.objects import Observed, Refusal, TrainingJobObject
from neuroshard_operator.observed.results import MANIFEST_FILE
from neuroshard_operator.settings import Settings
from neuroshard_operator.stages.approval import approve
from neuroshard_operator.stages.cleanup import clean_up
from neuroshard_operator.stages.given_plan import adopt_plan
from neuroshard_operator.stages.input_hashes import plan_inputs_hash, takes_given_models
from neuroshard_operator.stages.launching import launch
from neuroshard_operator.stages.planning import make_plan, planned_already
from neuroshard_operator.stages.profiling import hardware_of, profile_hardware
from neuroshard_operator.stages.result import StageResult, failed
from neuroshard_operator.stages.running import run, succeeded
from neuroshard_operator.stages.suspension import suspend
from neuroshard_operator.status import has_ended, new_status, read_status

REJECTED_REQUEUE_S = 30.0
"""Before a write that the API server refused is tried again: a quota may have room then."""
NEVER_VALID = {400, 422}
TOO_LARGE = 413

_GOOD_NEWS = {
    ConditionType.PROFILED: "Profiled",
    ConditionType.PLANNED: "Planned",
    ConditionType.RUNNING: "Running",
    ConditionType.SUSPENDED: "Suspended",
    ConditionType.SUCCEEDED: "Succeeded",
}


def reconcile(observed: Observed, *, now: datetime, settings: Settings) -> Decision:
    """Return what this pass wants: a status, then actions, then a time to look again.

    It reads no clock and calls nothing. Nothing is wanted of a job that is being deleted or that someone else manages.
    """
    job = observed.job
    now = now.replace(microsecond=0)  # the API keeps whole seconds: anything finer would be a change with every pass
    if job.meta.deleted is not None or job.spec.get("managedBy", OPERATOR) != OPERATOR:
        return Decision()
    status = read_status(job.status)
    try:
        model = _read(job)
    except DocumentError as error:
        return Decision() if has_ended(status) else _invalid(observed, status, str(error), now)
    context = Context(observed=observed, job=model, status=status, settings=settings, now=now)
    if has_ended(status):
        left = clean_up(context)
        return Decision(actions=left.actions, requeue_after_s=left.requeue_after_s)
    return _decision(context, _steps(context))


def reads_needed(observed: Observed, *, now: datetime, settings: Settings) -> Reads:
    """Return what must be read before this job can be reconciled: nothing, for a job that has its plan."""
    job = observed.job
    status = read_status(job.status)
    if job.meta.deleted is not None or has_ended(status) or job.spec.get("managedBy", OPERATOR) != OPERATOR:
        return Reads()
    try:
        model = _read(job)
    except DocumentError:
        return Reads()
    spec = model.spec
    if spec.suspend:
        return Reads()
    context = Context(observed=observed, job=model, status=status, settings=settings, now=now)
    nodes = _profiles(context) and not (status.hardware and status.hardware.fingerprint)
    if not nodes and planned_already(context, _inputs_hash(context)) is not None:
        return Reads()
    files: list[tuple[str, str]] = []
    if spec.plan_ref is not None:
        files.append((spec.plan_ref.name, spec.plan_ref.key))
    if spec.model.embedding_tables_from is not None:
        reference = spec.model.embedding_tables_from.config_map_key_ref
        files.append((reference.name, reference.key))
    models = spec.profiler.cost_model_ref
    if models is not None and models.config_map_name is not None and spec.profiler.device_type is None:
        files.append((models.config_map_name, MANIFEST_FILE))
    return Reads(nodes=nodes, files=tuple(files))


def _read(job: TrainingJobObject) -> DLRMTrainingJob:
    raw: Mapping[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.meta.name, "namespace": job.namespace},
        "spec": job.spec,
    }
    return DLRMTrainingJob.from_data(raw, where=f"{KIND} {job.meta.name}")


def _steps(context: Context) -> list[StageResult]:
    """Return the stages' steps in order, up to the first that is not done."""
    first = succeeded(context) or _refused_for_good(context.observed.refusals)
    if first is not None:
        return [first]
    if context.spec.suspend:
        return [suspend(context)]
    late = _too_late(context)
    if late is not None:
        return [late]
    inputs_hash = _inputs_hash(context)
    found = planned_already(context, inputs_hash)
    if found is None:
        return _up_to_plan(context, inputs_hash)
    step, planned = found
    if _profiles(context):
        step = replace(step, status_fields={**step.status_fields, "hardware": hardware_of(context)})
    steps = [step, approve(context, planned)]
    if not steps[-1].done:
        return steps
    launched, job = launch(context, planned)
    steps.append(launched)
    if job is not None:
        steps.append(run(context, job))
    return steps


def _up_to_plan(context: Context, inputs_hash: str) -> list[StageResult]:
    if context.spec.plan_ref is not None:
        return [adopt_plan(context, context.spec.plan_ref, inputs_hash)]
    step, profiled = profile_hardware(context)
    return [step] if profiled is None else [step, make_plan(context, inputs_hash, profiled)]


def _profiles(context: Context) -> bool:
    return context.spec.plan_ref is None and not takes_given_models(context.spec)


def _inputs_hash(context: Context) -> str:
    hardware: Hardware | None = hardware_of(context) if _profiles(context) else None
    return plan_inputs_hash(context.spec, hardware, replans=context.status.replans or 0)


def _too_late(context: Context) -> StageResult | None:
    """Return the step that ends a job which missed a deadline; waiting in a queue does not count."""
    policy, started = context.spec.run_policy, context.status.start_time
    if started is None or holds(context.status.conditions, ConditionType.SUSPENDED):
        return None
    limit = policy.active_deadline_seconds
    if limit is not None and context.now >= started + timedelta(seconds=limit):
        message = f"the job took longer than runPolicy.activeDeadlineSeconds ({limit} s)"
        return failed(display_stage=Stage.RUNNING, stage=None, reason=Reason.DEADLINE_EXCEEDED, message=message)
    limit = policy.pre_running_deadline_seconds
    ran = context.stage_status(StageName.RUNNING).start_time is not None
    if limit is not None and not ran and context.now >= started + timedelta(seconds=limit):
        doing = f"; it was at: {context.status.message}" if context.status.message else ""
        message = f"the workers did not all run within runPolicy.preRunningDeadlineSeconds ({limit} s){doing}"
        return failed(display_stage=Stage.LAUNCHING, stage=None, reason=Reason.NOT_RUNNING_IN_TIME, message=message)
    return None


def _deadline_s(context: Context, status: Status) -> float | None:
    """Return the seconds to the next deadline."""
    policy, started = context.spec.run_policy, status.start_time
    if started is None:
        return None
    ran = any(each.name is StageName.RUNNING and each.start_time for each in status.stages)
    limits = [policy.active_deadline_seconds, None if ran else policy.pre_running_deadline_seconds]
    return earliest(
        seconds_until(started + timedelta(seconds=limit), context.now) for limit in limits if limit is not None
    )


def _refused_for_good(refusals: Sequence[Refusal]) -> StageResult | None:
    for refusal in refusals:
        what = f"{refusal.kind} {refusal.name}"
        if refusal.foreign:
            message = f"{what} exists and does not belong to this job; rename the job, or remove that object"
            return failed(display_stage=Stage.FAILED, stage=None, reason=Reason.NAME_CONFLICT, message=message)
        if refusal.code in NEVER_VALID:
            message = f"the API server does not take {what}: {refusal.message}; check spec.podTemplate and spec.trainer"
            return failed(display_stage=Stage.FAILED, stage=None, reason=Reason.INVALID_TEMPLATE, message=message)
        if refusal.code == TOO_LARGE:
            message = f"{what} is too large for the API server: {refusal.message}"
            return failed(display_stage=Stage.FAILED, stage=None, reason=Reason.INPUT_TOO_LARGE, message=message)
    return None


def _decision(context: Context, steps: list[StageResult]) -> Decision:
    last, refusals = steps[-1], context.observed.refusals
    again = last.requeue_after_s
    if refusals and last.completion is None and last.actions:
        said = "; ".join(f"{each.kind} {each.name}: {each.message}" for each in refusals)
        message = f"the API server refuses, and is asked again every {REJECTED_REQUEUE_S:.0f} s: {said}"
        steps = [*steps[:-1], replace(last, reason=Reason.CHILD_REFUSED, message=message)]
        again = earliest([again, REJECTED_REQUEUE_S])
    status = new_status(context, steps)
    if status.restarts != context.status.restarts and context.status.restarts is not None:
        # What follows from another attempt is decided by the pass after this one, from the recorded number.
        steps = [replace(step, actions=()) for step in steps]
    ended = last.completion is not None
    actions = () if ended else tuple(action for step in steps for action in step.actions)
    events = [event for step in steps for event in step.events]
    changed = status != context.status
    return Decision(
        status=status if changed else None,
        actions=actions,
        events=(*events, *(_news(context.status, status) if changed else ())),
        requeue_after_s=0.1 if ended else earliest([again, _deadline_s(context, status)]),
    )


def _news(before: Status, after: Status) -> list[Event]:
    """Return an event for each condition that has come to hold: few reasons, which stay the same over releases."""
    held = {each.type for each in before.conditions if each.status.value == "True"}
    events = []
    for condition in after.conditions:
        if condition.status.value != "True" or condition.type in held:
            continue
        if condition.type == ConditionType.FAILED:
            events.append(Event(kind="Warning", reason="Failed", message=f"{condition.reason}: {condition.message}"))
        elif condition.type in _GOOD_NEWS:
            events.append(Event(kind="Normal", reason=condition.type, message=condition.message))
    return events


def _invalid(observed: Observed, status: Status, problem: str, now: datetime) -> Decision:
    """Completion a job whose resource cannot be read: an older definition let it pass the API server."""
    found = [ConditionUpdate(type=ConditionType.FAILED, holds=True, reason=Reason.INVALID_SPEC, message=problem)]
    generation = observed.job.generation
    after = status.model_copy(
        update={
            "observed_generation": generation,
            "stage": Stage.FAILED,
            "reason": Reason.INVALID_SPEC.value,
            "message": problem[:4096],
            "completion_time": now,
            "conditions": merged(status.conditions, found, now=now, generation=generation),
        }
    )
    return Decision(status=after, events=tuple(_news(status, after)))

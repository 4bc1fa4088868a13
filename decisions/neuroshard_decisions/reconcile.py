"""All decisions: from what was observed of a job to what is wanted. Pure functions; repeating them changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.spec import OPERATOR, Spec
from neuroshard_api.job.status import HardwareStatus, Stage, StageName, Status
from neuroshard_api.job.training_job import API_VERSION, KIND, DLRMTrainingJob
from neuroshard_api.lifecycle.deadlines import missed_deadline, next_deadline

from neuroshard_decisions import names
from neuroshard_decisions.actions import Action, Decision, Event, EventReason, Reads
from neuroshard_decisions.conditions import (
    MESSAGE_CHARACTERS,
    ConditionType,
    ConditionUpdate,
    Reason,
    WarningUpdate,
    holds,
    merged,
    merged_warnings,
)
from neuroshard_decisions.context import Context, Rules, UnreadableJob, earliest, seconds_until
from neuroshard_decisions.observed.objects import ChildJob, Observed, Refusal, without_log_tails
from neuroshard_decisions.observed.results import MANIFEST_FILE
from neuroshard_decisions.pod_template import template_problem
from neuroshard_decisions.stages.approval import approve
from neuroshard_decisions.stages.cleanup import clean_up, outlived
from neuroshard_decisions.stages.corrected_models import (
    another_choice,
    correct,
    corrections_needed,
    cost_models,
    others_needed,
    taken,
)
from neuroshard_decisions.stages.documents import documents_needed, events_needed
from neuroshard_decisions.stages.drift import drift_of, steady
from neuroshard_decisions.stages.elastic import (
    choose_size,
    is_size_due,
    leave_missing_places,
    leave_out_size,
    sized_context,
)
from neuroshard_decisions.stages.given_plan import adopt_plan
from neuroshard_decisions.stages.growth import are_nodes_needed, grow, planned_growth
from neuroshard_decisions.stages.input_hashes import plan_inputs_hash, replans_of, takes_given_models
from neuroshard_decisions.stages.launching import launch
from neuroshard_decisions.stages.lost_labels import relabelled
from neuroshard_decisions.stages.pinned import wait_for_a_node
from neuroshard_decisions.stages.planning import (
    Planned,
    has_other_tables,
    make_plan,
    planned_already,
    replan_for_tables,
)
from neuroshard_decisions.stages.profiling import finds_no_node, hardware_of, profile_needed
from neuroshard_decisions.stages.queueing import servers_not_queued
from neuroshard_decisions.stages.quota import give_back, take_admitted, withdrawn
from neuroshard_decisions.stages.replanning import is_planning_candidate, replan
from neuroshard_decisions.stages.result import StageResult, failed
from neuroshard_decisions.stages.running import run, succeeded
from neuroshard_decisions.stages.slow_nodes import leave_slow_node
from neuroshard_decisions.stages.suspension import suspend
from neuroshard_decisions.stages.training import TrainingWorkers
from neuroshard_decisions.status import has_ended, new_status, read_status

REJECTED_REQUEUE_S = 30.0
"""Before a write that the API server refused is tried again: a quota may have room then."""
NEVER_VALID = {400, 422}
TOO_LARGE = 413

PlacesOf = Callable[[Action], frozenset[tuple[str, str]]]

_GOOD_NEWS = {
    ConditionType.PROFILED,
    ConditionType.PLANNED,
    ConditionType.RUNNING,
    ConditionType.SUSPENDED,
    ConditionType.SUCCEEDED,
}


def read(observed: Observed, *, now: datetime, rules: Rules) -> Context | UnreadableJob:
    """Return the resource and its status as values; everything that follows decides from them.

    Fields that this release does not know are passed over: the definition may be newer than the operator, and the API
    server fills in its defaults on reading too. Rules between fields that an earlier release did not have refuse a new
    job alone: one that was started is served, and gets no new plan.
    """
    observed = observed if rules.log_tails else without_log_tails(observed)
    now = now.replace(microsecond=0)  # the API keeps whole seconds: anything finer would be a change with every pass
    job = observed.job
    status = read_status(job.status)
    if job.unreadable:
        hint = "; hint: shorten it, or name a ConfigMap with it" if job.unreadable.startswith("spec:") else ""
        problem = f"{KIND} {job.meta.name}: {job.unreadable}{hint}"
        return UnreadableJob(observed=observed, status=status, problem=problem, now=now)
    raw: Mapping[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.meta.name, "namespace": job.namespace},
        "spec": job.spec,
    }
    try:
        stored = DLRMTrainingJob.from_stored_data(raw, where=f"{KIND} {job.meta.name}")
    except DocumentError as error:
        return UnreadableJob(observed=observed, status=status, problem=str(error), now=now)
    if stored.broken_rules and _is_new(observed, status):
        problem = f"{KIND} {job.meta.name}: {'; '.join(stored.broken_rules)}"
        return UnreadableJob(observed=observed, status=status, problem=problem, now=now)
    return sized_context(
        Context(
            observed=observed,
            job=stored.job,
            status=status,
            rules=rules,
            now=now,
            ignored=stored.unknown,
            broken_rules=stored.broken_rules,
        )
    )


def reads_needed(context: Context | UnreadableJob) -> Reads:
    """Return the reads that this job's reconcile pass needs: none, once a job has its plan.

    The answer may grow with what was read, so it is asked for until it is empty.
    """
    if isinstance(context, UnreadableJob) or not _is_ours(context.observed) or has_ended(context.status):
        return Reads()
    if template_problem(context.spec.pod_template.spec) is not None:
        return Reads()
    if context.unseen_worker_jobs:  # what is needed beside them depends on what they are
        return Reads(jobs=context.unseen_worker_jobs)
    documents, events = documents_needed(context), events_needed(context)
    if documents or events or context.spec.suspend:
        return Reads(documents=documents, events=events)
    return _reads_for_plan(context)


def _reads_for_plan(context: Context) -> Reads:
    """Return the reads needed to plan, or to doubt the kind of GPU of workers that find no node."""
    workers = context.current_workers
    doubts_kind = context.observed.nodes is None and workers is not None and wait_for_a_node(context, workers)
    needs_nodes = context.observed.nodes is None and (is_size_due(context) or are_nodes_needed(context))
    if doubts_kind or needs_nodes or (_profiles(context) and not _knows_hardware(context)):
        return Reads(nodes=True)
    if is_size_due(context):  # another pass follows, of the job of that size
        return Reads()
    found = planned_already(context, _inputs_hash(context))
    others = () if found is None else others_needed(context, found[1])
    if others:
        return Reads(documents=others)
    plans = found is None or is_planning_candidate(context) or planned_growth(context) is not None
    if not (plans or _may_have_other_tables(context)) or context.broken_rules:
        return Reads()
    files = tuple(file for file in _files_needed(context.spec) if context.fetched(*file) is None)
    documents = profile_needed(context) if _profiles(context) and plans else ()
    corrections = () if files or not plans else corrections_needed(context)
    return Reads(files=files, documents=(*documents, *corrections))


def reconcile(context: Context | UnreadableJob, *, places_of: PlacesOf = lambda _: frozenset()) -> Decision:
    """Return the decision of this pass: a status, then actions, then the time of the next pass.

    It reads no clock and calls nothing. Nothing is wanted of a job that is being deleted or that someone else manages.

    Args:
        context: of the pass.
        places_of: kind and name of the objects that an action makes. If unset: none; only writes to a cluster are
            refused.
    """
    if not _is_ours(context.observed):
        return Decision()
    if isinstance(context, UnreadableJob):
        return Decision() if has_ended(context.status) else _unreadable(context)
    if has_ended(context.status):
        left = clean_up(context)
        return Decision(actions=left.actions, requeue_after_s=left.requeue_after_s)
    problem = template_problem(context.spec.pod_template.spec)
    if problem is not None:
        end = failed(display_stage=Stage.FAILED, stage=None, reason=Reason.INVALID_TEMPLATE, message=problem)
        return _decision(context, [end], places_of)
    problem = _not_here(context)
    if problem is not None:
        end = failed(display_stage=Stage.FAILED, stage=None, reason=Reason.INVALID_INPUT, message=problem)
        return _decision(context, [end], places_of)
    return _decision(context, _stages(context), places_of)


def _not_here(context: Context) -> str | None:
    """Return the reason that this adapter cannot run the job, whose values are right. None: it can."""
    if not context.is_queued or _had_workers(context):
        return None
    servers = None if context.rules.starts_servers else context.spec.experimental.embedding_servers
    return servers_not_queued(context) if servers is not None and servers.tables else None


def _is_ours(observed: Observed) -> bool:
    job = observed.job
    return job.meta.deleted is None and job.managed_by in {"", OPERATOR}


def _files_needed(spec: Spec) -> list[tuple[str, str]]:
    """Return the ConfigMaps of users that a plan is made from, by name and key."""
    files: list[tuple[str, str]] = []
    if spec.plan_ref is not None:
        files.append((spec.plan_ref.name, spec.plan_ref.key))
    source = spec.model.embedding_tables_from
    reference = None if source is None else source.config_map_key_ref
    if reference is not None:
        files.append((reference.name, reference.key))
    models = spec.profiler.cost_model_ref
    if models is not None and models.config_map_name is not None and spec.profiler.device_type is None:
        files.append((models.config_map_name, MANIFEST_FILE))
    return files


def _stages(context: Context) -> list[StageResult]:
    """Return the results of the stages up to the first that is not done, and of the workers in any case.

    Two tracks: the workers that run are served whatever plan they were started under, and the plan for the present
    inputs is prepared next to them. Only `launch`, once that plan is there, replaces them.
    """
    first = _before_stages(context)
    if first is not None:
        return [first]
    current = context.current_workers
    prepared, planned = _prepare(context)
    if planned is None and current is not None:
        return [*map(_beside_workers, prepared), run(context, current)]
    if planned is None:
        larger = leave_out_size(context, prepared[-1])
        return give_back(context, prepared) if larger is None else [larger]
    launched, job = launch(context, planned)
    if not is_planning_candidate(context) and planned_growth(context) is None:
        launched = replace(launched, actions=(*outlived(context), *launched.actions))
    return [*prepared, launched, *([] if job is None else _trained(context, planned, job))]


def _before_stages(context: Context) -> StageResult | None:
    """Return the step of a job that has ended, rests, or gets another size. None: its stages decide."""
    first = succeeded(context)
    if first is None and not _had_workers(context):  # afterwards a write that is rejected is tried again
        first = _refused_for_good(context.observed.refusals)
    if first is None and context.spec.suspend:
        first = suspend(context)
    if first is None:
        first = _too_late(context) or choose_size(context)
    current = context.current_workers
    if first is None and current is not None:
        first = take_admitted(context, current) or leave_missing_places(context, current)
    return first


def _trained(context: Context, planned: Planned, job: ChildJob) -> list[StageResult]:
    """Return the results for workers that were started under the plan, and for later stages where all of them train."""
    running = run(context, job)
    if running.reason is not Reason.WORKERS_READY:
        return [running]
    training = TrainingWorkers(context=context, planned=planned, workers=job, drift=drift_of(context, planned))
    steps = steady(context, training.drift)
    elsewhere = leave_slow_node(training)
    if elsewhere is not None:  # one restart at a time: a candidate is decided on in the next attempt
        return [steps, running, elsewhere]
    nodes = planned_growth(context)
    larger = grow(training, larger_hash=None if nodes is None else _inputs_hash(context.of_size(nodes)))
    if larger.reason is Reason.RESTARTING:
        return [steps, running, larger]
    return [steps, larger, replan(training, candidate_hash=_candidate_hash(context)), correct(training), running]


def _had_workers(context: Context) -> bool:
    """Return whether workers of the job run or ran: the API server accepted what they need, and may do so again."""
    ran = context.stage_status(StageName.RUNNING).attempts
    return context.current_workers is not None or bool(context.status.restarts or ran)


def _prepare(context: Context) -> tuple[list[StageResult], Planned | None]:
    """Return the stages up to the approved plan for the present inputs, and that plan once it may be launched."""
    inputs_hash = _inputs_hash(context)
    found = planned_already(context, inputs_hash)
    if found is None:
        return _up_to_plan(context, inputs_hash) if not context.broken_rules else [_refused_plan(context)], None
    result, planned = found
    if _may_have_other_tables(context) and has_other_tables(context, planned.summary):
        return [replan_for_tables(context)], None
    if _profiles(context):
        result = replace(result, status_fields={**result.status_fields, "hardware": hardware_of(context)})
    approved = approve(context, planned)
    return [result, approved], planned if approved.done else None


def _may_have_other_tables(context: Context) -> bool:
    """Return whether the user's ConfigMap with tables must be compared with the plan: once, when the job resumes."""
    is_read = context.spec.model.embedding_tables_from is not None and context.spec.plan_ref is None
    return is_read and context.is_resumed


def _refused_plan(context: Context) -> StageResult:
    """Return the step of a job that needs a plan, and whose spec an earlier release let in and this one refuses."""
    message = f"no plan is made: {'; '.join(context.broken_rules)}; hint: change the spec"
    return StageResult(display_stage=Stage.PENDING, reason=Reason.INVALID_SPEC, message=message)


def _beside_workers(result: StageResult) -> StageResult:
    """Return a stage's result while workers run under another plan; the displayed stage stays that of the workers.

    A failure to plan does not end a training that runs; the stage's own condition tells of it.
    """
    fields = {key: value for key, value in result.status_fields.items() if key not in _OF_THE_LAUNCHED_PLAN}
    return replace(result, completion=None, status_fields=fields)


_OF_THE_LAUNCHED_PLAN = {"plan", "cost"}


def _up_to_plan(context: Context, inputs_hash: str) -> list[StageResult]:
    if context.spec.plan_ref is not None:
        return [adopt_plan(context, context.spec.plan_ref, inputs_hash)]
    step, profiled = cost_models(context)
    has_planner = context.job_named(names.planner_job(context.name, inputs_hash)) is not None
    chosen = another_choice(context, step, has_planner=has_planner)
    if chosen is not None or profiled is None:
        return [step] if chosen is None else [step, chosen]
    return [step, make_plan(context, inputs_hash, profiled)]


def _profiles(context: Context) -> bool:
    return context.spec.plan_ref is None and not takes_given_models(context.spec)


def _knows_hardware(context: Context) -> bool:
    recorded = context.status.hardware
    if context.observed.nodes is not None or recorded is None or not recorded.fingerprint:
        return context.observed.nodes is not None
    return not finds_no_node(context, recorded)


def _inputs_hash(context: Context, candidate: int | None = None) -> str:
    """Return the hash of what decides the plan in force, or a candidate of that number."""
    hardware: HardwareStatus | None = hardware_of(context) if _profiles(context) else None
    further, changes = context.status.replanning, context.status.table_changes or 0
    number = candidate or (further.accepted if further else None) or 0
    return plan_inputs_hash(
        context.spec,
        hardware,
        replans=replans_of(context),
        table_changes=changes,
        candidate=number,
        correction=taken(context),
        at_hand="" if context.at_hand is None else context.at_hand.digest,
    )


def _candidate_hash(context: Context) -> str | None:
    further = context.status.replanning
    return None if further is None or further.candidate is None else _inputs_hash(context, further.candidate.number)


def _too_late(context: Context) -> StageResult | None:
    """Return the step that ends a job which missed a deadline; waiting in a queue does not count."""
    if holds(context.status.conditions, ConditionType.SUSPENDED):
        return None
    missed = missed_deadline(context.spec.run_policy, context.status, context.now)
    if missed is None:
        return None
    if missed.is_of_start:
        stage, reason = Stage.LAUNCHING, Reason.NOT_RUNNING_IN_TIME
    else:
        stage, reason = Stage.RUNNING, Reason.DEADLINE_EXCEEDED
    return failed(display_stage=stage, stage=None, reason=reason, message=missed.message)


def _deadline_s(context: Context, status: Status) -> float | None:
    """Return the seconds to the next deadline."""
    due = next_deadline(context.spec.run_policy, status)
    return None if due is None else seconds_until(due, context.now)


def _refused_for_good(refusals: Sequence[Refusal]) -> StageResult | None:
    for refusal in refusals:
        what = f"{refusal.kind} {refusal.name}"
        if refusal.foreign:
            message = f"{what} exists and does not belong to this job; hint: rename the job, or remove that object"
            return failed(display_stage=Stage.FAILED, stage=None, reason=Reason.NAME_CONFLICT, message=message)
        if refusal.code in NEVER_VALID:
            is_of_pods = refusal.kind in {"Job", names.JOB_SET}
            check = "; hint: check spec.podTemplate and spec.trainer" if is_of_pods else ""
            message = f"the API server does not take {what}: {refusal.message}{check}"
            return failed(display_stage=Stage.FAILED, stage=None, reason=Reason.INVALID_TEMPLATE, message=message)
        if refusal.code == TOO_LARGE:
            message = f"{what} is too large for the API server: {refusal.message}"
            return failed(display_stage=Stage.FAILED, stage=None, reason=Reason.INPUT_TOO_LARGE, message=message)
    return None


def _decision(context: Context, steps: list[StageResult], places_of: PlacesOf) -> Decision:
    last, refusals = steps[-1], context.observed.refusals
    wanted_s = [step.requeue_after_s for step in steps]
    rejected = _still_wanted(refusals, steps, places_of) if refusals and last.completion is None else []
    if rejected:
        problem = "; ".join(f"{each.kind} {each.name}: {each.message}" for each in rejected)
        message = f"the API server rejected a write, which is tried again every {REJECTED_REQUEUE_S:.0f} s: {problem}"
        if last.display_stage is Stage.RUNNING:
            last = replace(last, message=f"{last.message}; {message}")
        else:
            last = replace(last, reason=Reason.CHILD_REFUSED, message=message)
        steps = [*steps[:-1], last]
        wanted_s.append(REJECTED_REQUEUE_S)
    status = new_status(context, steps)
    gone = withdrawn(context, steps, status)
    if status.restarts != context.status.restarts and context.status.restarts is not None:
        # What follows from another attempt is decided by the pass after this one, from the recorded number.
        steps = [replace(step, actions=()) for step in steps]
    ended = last.completion is not None
    repairs, repaired = relabelled(context)
    actions = () if ended else (*repairs, *gone, *(action for step in steps for action in step.actions))
    events = [*(() if ended else repaired), *(event for step in steps for event in step.events)]
    changed = status != context.status
    return Decision(
        status=status if changed else None,
        actions=actions,
        events=(*events, *(_news(context.status, status) if changed else ())),
        requeue_after_s=0.1 if ended else earliest([*wanted_s, _deadline_s(context, status)]),
    )


def _still_wanted(refusals: Sequence[Refusal], steps: Sequence[StageResult], places_of: PlacesOf) -> list[Refusal]:
    """Return the rejected writes that a stage wants again."""
    places = {place for step in steps for action in step.actions for place in places_of(action)}
    return [refusal for refusal in refusals if (refusal.kind, refusal.name) in places]


def _news(before: Status, after: Status) -> list[Event]:
    """Return an event for each condition that has come to hold: few reasons, which stay the same over releases."""
    held = {each.type for each in before.conditions if each.status.value == "True"}
    events = []
    for condition in after.conditions:
        if condition.status.value != "True" or condition.type in held:
            continue
        if condition.type == ConditionType.FAILED:
            events.append(Event(reason=EventReason.FAILED, message=f"{condition.reason}: {condition.message}"))
        elif condition.type in _GOOD_NEWS:
            events.append(Event(reason=EventReason(condition.type), message=condition.message))
    return events


def _is_new(observed: Observed, status: Status) -> bool:
    """Return whether nothing was done for a job yet; Jobs of an earlier one of the same name do not count."""
    uid = observed.job.meta.uid
    return status.stage is None and not any(job.meta.owner_uid == uid for job in observed.jobs)


def _unreadable(job: UnreadableJob) -> Decision:
    """End a job that was never worked on; leave one alone that was.

    A value that cannot be read means that the definition is of another release than the operator: its children were
    made from a resource that could be read, and go on.
    """
    before, generation = job.status, job.observed.job.generation
    is_new = _is_new(job.observed, before)
    reason = Reason.INVALID_SPEC
    found = [ConditionUpdate(type=ConditionType.FAILED, holds=True, reason=reason, message=job.problem)]
    warnings = [WarningUpdate(reason=reason, message=job.problem)]
    fields: dict[str, object] = {
        "observed_generation": generation,
        "reason": reason.value,
        "message": job.problem[:MESSAGE_CHARACTERS],
    }
    if is_new:
        conditions = merged(before.conditions, found, now=job.now, generation=generation)
        fields |= {"conditions": conditions, "stage": Stage.FAILED, "completion_time": job.now}
    else:
        fields["warnings"] = merged_warnings(before.warnings, warnings, now=job.now)
    after = before.model_copy(update=fields)
    return Decision(status=after, events=tuple(_news(before, after))) if after != before else Decision()

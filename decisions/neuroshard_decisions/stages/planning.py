"""Planning: the plan's immutable ConfigMap, from a planner Job or from the user's own plan."""

from dataclasses import dataclass, replace

from neuroshard_api.documents.config_map import ConfigMapTooLargeError
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.sizes import at_batch_size
from neuroshard_api.job.status import BatchStatus, ConfigMapReference, Cost, PlanStatus, Stage, StageName, StageState
from neuroshard_api.job.workers import other_servers
from neuroshard_api.lifecycle.restarts import reserve_note, with_more_reserve
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_decisions import names
from neuroshard_decisions.actions import (
    Action,
    CandidateInputs,
    Change,
    Delete,
    Event,
    EventReason,
    Files,
    GivenModels,
    Keep,
    PlannerRun,
    Start,
)
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.fallback import may_fall_back
from neuroshard_decisions.files import request_file
from neuroshard_decisions.observed.objects import ChildConfigMap
from neuroshard_decisions.observed.results import PlanResult, ReportSummary, Unreadable, model_hash, tables_hash
from neuroshard_decisions.stages.host_memory import host_memory_available, within_nodes
from neuroshard_decisions.stages.input_hashes import fallback_hash, replans_of
from neuroshard_decisions.stages.result import StageResult, StageUpdate, condition
from neuroshard_decisions.stages.stage_job import JobStage, follow
from neuroshard_decisions.stages.tables import tables_of

PLANNING = JobStage(
    stage=Stage.PLANNING,
    name=StageName.PLANNING,
    condition=ConditionType.PLANNED,
    role=names.PLANNER,
    running=Reason.PLANNER_RUNNING,
    failed=Reason.PLANNING_FAILED,
    timed_out=Reason.PLANNING_TIMED_OUT,
    unusable=Reason.PLAN_UNUSABLE,
    time_limit="planning took longer than experimental.planner.timeoutSeconds",
    result="plan",
    again="it plans again",
    failures={ExitCode.INFEASIBLE: (Reason.INFEASIBLE, "no plan fits")},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A plan that the workers can be started under."""

    summary: PlanResult
    name: str
    """The plan's ConfigMap."""
    is_kept: bool
    """Whether the ConfigMap is there, and not only on its way."""


def planned_already(context: Context, inputs_hash: str) -> tuple[StageResult, Planned] | None:
    """Return the plan for these inputs if there is one, and what sets it right if someone touched it.

    A plan needs no profile any more, so a profile that was deleted since does not stop a running job.
    """
    for each in _hashes(context, inputs_hash):
        found = _find(context, each)
        if found is not None:
            return found
    return None


def has_other_tables(context: Context, plan: PlanResult) -> bool:
    """Return whether the user's ConfigMap has tables, and others than the plan was made for.

    A plan for measured inputs has its own lookups: names, rows, columns, and data types count alone.
    """
    tables = tables_of(context)
    if not isinstance(tables, TableSet):
        return False
    if plan.incumbent_ms is not None:
        return model_hash(tables.tables) != plan.model_hash
    return tables_hash(tables) != plan.tables_hash


def plan_candidate(
    context: Context, inputs_hash: str, profiled: GivenModels, in_force: CandidateInputs | None
) -> StageResult:
    """Return the result of planning while there is no candidate plan: a planner Job, or its end in failure."""
    return _attempt(context, inputs_hash, profiled, None, in_force)


def candidate_plan(context: Context, inputs_hash: str) -> PlanResult | None:
    """Return the candidate plan that a planner has published, if it is for this job."""
    result = context.config_map(names.result(names.planner_job(context.name, inputs_hash)))
    document = result.document if result else None
    return document if isinstance(document, PlanResult) and mismatch(context, document) is None else None


def replan_for_tables(context: Context) -> StageResult:
    """Return the step that has the job planned again; the count makes other inputs of the change."""
    message = "model.embeddingTablesFrom has other tables than the plan; they are planned"
    step = PLANNING.active(Reason.PLANNER_RUNNING, message, None, requeue_after_s=0.1)
    return replace(step, status_fields={"table_changes": (context.status.table_changes or 0) + 1})


def make_plan(context: Context, inputs_hash: str, profiled: GivenModels) -> StageResult:
    """Return the result of planning while there is no plan: a planner Job, then the fallback's, then the end."""
    step = _attempt(context, inputs_hash, profiled, None, _accepted_inputs(context))
    fallback = context.spec.planner.fallback_algorithm.algorithm
    if step.completion is None or fallback is None or not _may_fall_back(step):
        return step
    second = _attempt(context, fallback_hash(inputs_hash, fallback.value), profiled, fallback)
    if second.completion is not None:
        return second
    message = f"{step.message}; {fallback.value} plans instead: {second.message}"
    return PLANNING.active(
        Reason.FALLBACK_RUNNING,
        message,
        second.stage_updates[0].job_name,
        actions=second.actions,
        events=second.events,
        requeue_after_s=second.requeue_after_s,
    )


def _accepted_inputs(context: Context) -> CandidateInputs | None:
    """Return the inputs that the accepted candidate was made for, and its plan. None: there is none, or they are gone.

    A plan that takes its place, as after a failure rule, is for the inputs as they were counted, not those of the spec.
    """
    record = context.status.replanning
    if record is None or record.accepted is None:
        return None
    taken = next((each for each in reversed(record.history) if each.candidate == record.accepted), None)
    plan = None if taken is None else context.config_map(names.plan(context.name, taken.hash.removeprefix("sha256:")))
    kept = context.config_map(names.inputs(context.name, record.accepted))
    if plan is None or kept is None:
        return None
    document, report = plan.document, kept.document
    if not isinstance(document, PlanResult) or not isinstance(report, ReportSummary) or report.statistics_key is None:
        return None
    if document.world_size != context.spec.trainer.world_size:  # no plan is near one for other devices
        return None
    return CandidateInputs(
        plan=plan.meta.name, plan_key=document.key, inputs=kept.meta.name, inputs_key=report.statistics_key
    )


def _may_fall_back(step: StageResult) -> bool:
    failure = step.completion.failure if step.completion else None
    if failure is None:  # no planner failed: it could not be asked, or published what cannot be used
        return step.reason is Reason.PLAN_UNUSABLE
    return may_fall_back(failure.exit_code, timed_out=step.reason is Reason.PLANNING_TIMED_OUT)


def _hashes(context: Context, inputs_hash: str) -> list[str]:
    fallback = context.spec.planner.fallback_algorithm.algorithm
    return [inputs_hash, *([fallback_hash(inputs_hash, fallback.value)] if fallback else [])]


def _find(context: Context, inputs_hash: str) -> tuple[StageResult, Planned] | None:
    """Return the plan in its ConfigMap, or in the planner's result, from which the ConfigMap is made (again)."""
    label = names.short(inputs_hash)
    plans = [
        each
        for each in context.observed.config_maps
        if each.role == names.PLAN
        and each.meta.owner_uid == context.uid
        and each.meta.labels.get(names.INPUTS_HASH_LABEL) == label
    ]
    good = [each for each in plans if isinstance(each.document, PlanResult) and _is_whole(context, each)]
    forged = [each for each in plans if each not in good]
    actions: list[Action] = [
        Delete(kind="ConfigMap", name=each.meta.name, uid=each.meta.uid) for each in forged if each.meta.deleted is None
    ]
    events = [
        Event(reason=EventReason.CHILD_REPAIRED, message=f"plan {each.meta.name} was edited and is deleted")
        for each in forged
        if each.meta.deleted is None
    ]
    if good:
        document = good[0].document
        assert isinstance(document, PlanResult), "they were chosen so"
        return _have(
            context,
            document,
            good[0].meta.name,
            inputs_hash,
            is_kept=True,
            actions=tuple(actions),
            events=tuple(events),
        )
    result = context.config_map(names.result(names.planner_job(context.name, inputs_hash)))
    if result is None or not isinstance(result.document, PlanResult):
        return None
    document = result.document
    problem = mismatch(context, document)
    if problem is not None:
        return None
    kept = kept_plan(context, document.hash, inputs_hash)
    if kept is not None:
        action, name = kept
        return _have(
            context, document, name, inputs_hash, is_kept=True, actions=(*actions, action), events=tuple(events)
        )
    name = names.plan(context.name, document.hash)
    keep = Keep(
        name=name,
        role=names.PLAN,
        labels={names.INPUTS_HASH_LABEL: label},
        source=result.meta.name,
        source_version=result.meta.resource_version,
    )
    actions.append(keep)
    return _have(
        context,
        document,
        name,
        inputs_hash,
        is_kept=False,
        actions=tuple(actions),
        events=tuple(events),
    )


def kept_plan(context: Context, plan_hash: str, inputs_hash: str) -> tuple[Action, str] | None:
    """Return the action that labels an existing plan as that of these inputs, and its name; None: there is none.

    Plans are named by their content, so other inputs that lead to an equal plan meet it under its name.
    """
    found = context.config_map(names.plan(context.name, plan_hash))
    if found is None or not _is_whole(context, found):
        return None
    labels = {names.INPUTS_HASH_LABEL: names.short(inputs_hash)}
    change = Change(kind="ConfigMap", name=found.meta.name, uid=found.meta.uid, labels=labels)
    return change, found.meta.name


def _is_whole(context: Context, plan: ChildConfigMap) -> bool:
    """Return whether a plan's content has the hash that is in its name."""
    return (
        plan.immutable and plan.meta.deleted is None and plan.meta.name == names.plan(context.name, plan.content_hash)
    )


def mismatch(context: Context, plan: PlanResult, tables: TableSet | None = None) -> tuple[Reason, str] | None:
    """Return the reason that a plan does not fit this job; None where it fits."""
    world_size = context.spec.trainer.world_size
    if plan.world_size != world_size:
        message = f"the plan is for {plan.world_size} devices, the job has {world_size} (numNodes x numProcPerNode)"
        return Reason.WORLD_SIZE_MISMATCH, message
    other = other_servers(plan.servers, context.spec.experimental.embedding_servers)
    if other is not None:
        return Reason.WORLD_SIZE_MISMATCH, other
    tables = tables or context.own_tables
    if tables is not None and plan.model_hash != model_hash(tables.tables):
        message = "the plan is for other tables: names, rows, columns or data types differ from spec.model"
        return Reason.MODEL_MISMATCH, message
    return None


def _have(
    context: Context,
    plan: PlanResult,
    name: str,
    inputs_hash: str,
    *,
    is_kept: bool,
    actions: tuple[Action, ...],
    events: tuple[Event, ...],
) -> tuple[StageResult, Planned]:
    given = context.spec.plan_ref is not None
    reason = Reason.PLAN_GIVEN if given else Reason.PLAN_WRITTEN
    planned = f"{plan.num_tables} tables on {plan.world_size} devices by {plan.algorithm} in ConfigMap {name}"
    batch = _batch(context, plan)
    chosen = "" if batch is None else f"; {_batch_text(batch)}"
    message = f"{planned}{chosen}" if given else f"{planned}{chosen}{_kept_free(context)}"
    before = context.status.cost or Cost()
    digest = f"sha256:{plan.hash}"
    is_other = context.status.plan is None or context.status.plan.hash != digest
    measured = None if is_other else before.measured
    step = StageResult(
        display_stage=Stage.LAUNCHING,
        reason=reason,
        message=message,
        done=True,
        conditions=(condition(ConditionType.PLANNED, reason, message, holds=True),),
        warnings=host_memory_available(context, plan),
        actions=actions,
        events=events,
        status_fields={
            "plan": PlanStatus(
                config_map_ref=ConfigMapReference(name=name, key=plan.key),
                hash=digest,
                inputs_hash=inputs_hash,
                algorithm=plan.algorithm,
                world_size=plan.world_size,
            ),
            "batch": batch,
            "cost": Cost(
                predicted=plan.predicted,
                baseline=plan.baseline,
                levers=plan.levers,
                measured=measured,
                error_percent=None if is_other else before.error_percent,
            ),
            **({"replans": None, "replans_inputs_hash": None} if _used_again(context) else {}),
        },
        stage_updates=(
            StageUpdate(
                stage=StageName.PLANNING,
                state=StageState.SKIPPED if given else StageState.SUCCEEDED,
                message=message,
            ),
        ),
    )
    return step, Planned(summary=plan, name=name, is_kept=is_kept)


def _batch(context: Context, plan: PlanResult) -> BatchStatus | None:
    """Return the batch of a plan that chose it, with the learning rates for it. None: the job gives a number."""
    if not context.spec.model.chooses_batch_size:
        return None
    training = at_batch_size(context.job, plan.samples_per_device).spec.training
    return BatchStatus(
        samples_per_device=plan.samples_per_device,
        embedding_learning_rate=str(training.embedding_learning_rate),
        dense_learning_rate=str(training.dense_learning_rate),
    )


def _batch_text(batch: BatchStatus) -> str:
    return (
        f"{batch.samples_per_device:,} samples per device, embedding learning rate {batch.embedding_learning_rate}, "
        f"dense learning rate {batch.dense_learning_rate}"
    )


def _attempt(
    context: Context,
    inputs_hash: str,
    profiled: GivenModels,
    algorithm: Algorithm | None,
    in_force: CandidateInputs | None = None,
) -> StageResult:
    job = context.job_named(names.planner_job(context.name, inputs_hash))
    if job is None:
        return _start(context, inputs_hash, profiled, algorithm, in_force)
    asked = _request(context, inputs_hash, profiled, algorithm) if job.outcome is None else None
    return follow(
        context,
        PLANNING,
        job,
        doing=_plans(context, job.meta.name),
        inputs=[asked] if isinstance(asked, Files) else [],
        problem=_problem_with(context, context.config_map(names.result(job.meta.name))),
        timeout_s=context.spec.experimental.planner.timeout_seconds,
    )


def _problem_with(context: Context, result: ChildConfigMap | None) -> str | None:
    """Return the problem with a published plan; None where there is none yet. One that fits was found before."""
    document = result.document if result else None
    if isinstance(document, Unreadable):
        return document.problem
    if isinstance(document, PlanResult):
        found = mismatch(context, document)
        return found[1] if found else None
    return None


def _plans(context: Context, name: str) -> str:
    return f"Job {name} plans for {context.spec.trainer.world_size} devices{_kept_free(context)}{_used_again(context)}"


def _kept_free(context: Context) -> str:
    """Return the memory that failures have a plan keep free, as the end of a message; or empty."""
    replans = replans_of(context)
    return f"; {reserve_note(replans)}" if replans else ""


def _used_again(context: Context) -> str:
    """Return that nothing is kept free any more, as the end of a message; or empty."""
    if not context.status.replans or replans_of(context):
        return ""
    return "; the memory that failures kept free is used again, since other inputs are planned for"


def _request(
    context: Context, inputs_hash: str, profiled: GivenModels, algorithm: Algorithm | None
) -> Files | StageResult:
    """Return the planner's request, or the result that explains why there is none."""
    tables = tables_of(context)
    if not isinstance(tables, TableSet):
        return tables
    try:
        kept = context.status.batch  # a training that resumes, or is planned again, keeps its batch
        job = context.job if kept is None else at_batch_size(context.job, kept.samples_per_device)
        request = plan_request(job, tables=tables, topology=profiled.topology, algorithm=algorithm)
        request = within_nodes(context, request)
    except ValueError as error:
        return PLANNING.failed_with(Reason.INVALID_INPUT, str(error))
    try:
        text = with_more_reserve(request, replans_of(context)).to_json()
        return request_file(context, inputs_hash, text)
    except (ConfigMapTooLargeError, DocumentError) as error:
        message = f"the planner's request does not fit into one ConfigMap: {error}"
        return PLANNING.failed_with(Reason.INPUT_TOO_LARGE, message)
    except ValueError as error:
        return PLANNING.failed_with(Reason.INVALID_INPUT, str(error))


def _start(
    context: Context,
    inputs_hash: str,
    profiled: GivenModels,
    algorithm: Algorithm | None,
    in_force: CandidateInputs | None = None,
) -> StageResult:
    request = _request(context, inputs_hash, profiled, algorithm)
    if isinstance(request, StageResult):
        return request
    name = names.planner_job(context.name, inputs_hash)
    run = PlannerRun(
        name=name,
        inputs_hash=inputs_hash,
        files=request,
        bundle=profiled.bundle,
        device=profiled.topology.device,
        in_force=in_force,
    )
    return PLANNING.active(Reason.PLANNER_RUNNING, _plans(context, name), name, actions=(Start(run=run),))

"""Planning: the plan's immutable ConfigMap, from a planner Job or from the user's own plan."""

from dataclasses import dataclass

from neuroshard_api.config_map import ConfigMapTooLargeError
from neuroshard_api.document import DocumentError
from neuroshard_api.exit_codes import ExitCode
from neuroshard_api.fallback import may_fall_back
from neuroshard_api.job_request import plan_request
from neuroshard_api.job_status import ConfigMapReference, Cost, PlanStatus, Stage, StageName, StageState
from neuroshard_api.request import Algorithm
from neuroshard_api.tables import TableSet

from neuroshard_operator import names
from neuroshard_operator.actions import Action, CopyConfigMap, Delete, Event, Manifest
from neuroshard_operator.children.access import REPAIRED, access, ensured
from neuroshard_operator.children.files import plan as plan_config_map
from neuroshard_operator.children.files import request_file
from neuroshard_operator.children.stage_jobs import planner_job
from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.context import View, seconds_until
from neuroshard_operator.failures import Cause, cause_of, trouble
from neuroshard_operator.observed.objects import ChildConfigMap, ChildJob
from neuroshard_operator.observed.results import PlanSummary, Unreadable, model_hash
from neuroshard_operator.stages.given_models import Profiled
from neuroshard_operator.stages.input_hashes import fallback_hash
from neuroshard_operator.stages.result import Course, Step, described, failed, says
from neuroshard_operator.stages.results import RESULT_LATE, removed, was_deleted
from neuroshard_operator.stages.tables import tables_of

MORE_RESERVE = 0.05
"""Share of a device's memory that each ReplanAndRestart holds back more: an equal request would get an equal plan."""
MOST_RESERVE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A plan that the workers can be started under."""

    summary: PlanSummary
    name: str
    """The plan's ConfigMap."""
    is_kept: bool
    """Whether the ConfigMap is there, and not only on its way."""


def planned_already(view: View, inputs_hash: str) -> tuple[Step, Planned] | None:
    """Return the plan for these inputs if there is one, and what sets it right if someone touched it.

    A plan needs no profile any more, so a profile that was deleted since does not stop a running job.
    """
    for each in _hashes(view, inputs_hash):
        found = _find(view, each)
        if found is not None:
            return found
    return None


def make_plan(view: View, inputs_hash: str, profiled: Profiled) -> Step:
    """Return what planning wants while there is no plan: a planner Job, then the fallback's, then the end."""
    step = _attempt(view, inputs_hash, profiled, None)
    fallback = view.spec.planner.fallback_algorithm.algorithm
    if step.end is None or fallback is None or not _may_fall_back(step):
        return step
    second = _attempt(view, fallback_hash(inputs_hash, fallback.value), profiled, fallback)
    if second.end is not None:
        return second
    message = f"{step.message}; {fallback.value} plans instead: {second.message}"
    return _active(
        Reason.FALLBACK_RUNNING,
        message,
        second.courses[0].job_name,
        actions=second.actions,
        events=second.events,
        look_again_s=second.look_again_s,
    )


def _may_fall_back(step: Step) -> bool:
    failure = step.end.failure if step.end else None
    if failure is None:  # no planner failed: it could not be asked, or published what cannot be used
        return step.reason is Reason.PLAN_UNUSABLE
    return may_fall_back(failure.exit_code, timed_out=step.reason is Reason.PLANNING_TIMED_OUT)


def _hashes(view: View, inputs_hash: str) -> list[str]:
    fallback = view.spec.planner.fallback_algorithm.algorithm
    return [inputs_hash, *([fallback_hash(inputs_hash, fallback.value)] if fallback else [])]


def _find(view: View, inputs_hash: str) -> tuple[Step, Planned] | None:
    """Return the plan in its ConfigMap, or in the planner's result, from which the ConfigMap is made (again)."""
    label = names.short(inputs_hash)
    plans = [
        each
        for each in view.observed.config_maps
        if each.role == names.PLAN
        and each.meta.owner_uid == view.uid
        and each.meta.labels.get(names.INPUTS_HASH_LABEL) == label
    ]
    good = [each for each in plans if isinstance(each.document, PlanSummary) and _is_whole(view, each)]
    forged = [each for each in plans if each not in good]
    actions: list[Action] = [
        Delete(kind="ConfigMap", name=each.meta.name, uid=each.meta.uid) for each in forged if each.meta.deleted is None
    ]
    events = [
        Event(kind="Warning", reason=REPAIRED, message=f"plan {each.meta.name} was edited and is deleted")
        for each in forged
        if each.meta.deleted is None
    ]
    if good:
        document = good[0].document
        assert isinstance(document, PlanSummary), "they were chosen so"
        return _have(
            view, document, good[0].meta.name, inputs_hash, is_kept=True, actions=tuple(actions), events=tuple(events)
        )
    result = view.config_map(names.result(names.planner_job(view.name, inputs_hash)))
    if result is None or not isinstance(result.document, PlanSummary):
        return None
    document = result.document
    problem = mismatch(view, document)
    if problem is not None:
        return None
    manifest = plan_config_map(view, document.hash, inputs_hash)
    copy = CopyConfigMap(manifest=manifest, source=result.meta.name, source_version=result.meta.resource_version)
    actions.append(copy)
    return _have(
        view,
        document,
        manifest["metadata"]["name"],
        inputs_hash,
        is_kept=False,
        actions=tuple(actions),
        events=tuple(events),
    )


def _is_whole(view: View, plan: ChildConfigMap) -> bool:
    """Tell whether a plan is what its name says: the name carries the hash of the content."""
    return plan.immutable and plan.meta.deleted is None and plan.meta.name == names.plan(view.name, plan.content_hash)


def mismatch(view: View, plan: PlanSummary, tables: TableSet | None = None) -> tuple[Reason, str] | None:
    """Return why a plan is not for this job; None where it is."""
    world_size = view.spec.trainer.world_size
    if plan.world_size != world_size:
        message = f"the plan is for {plan.world_size} devices, the job has {world_size} (numNodes x numProcPerNode)"
        return Reason.WORLD_SIZE_MISMATCH, message
    tables = tables or view.spec.model.inline_tables(view.name)
    if tables is not None and plan.model_hash != model_hash(tables.tables):
        message = "the plan is for other tables: names, rows, columns or data types differ from spec.model"
        return Reason.MODEL_MISMATCH, message
    return None


def _have(
    view: View,
    plan: PlanSummary,
    name: str,
    inputs_hash: str,
    *,
    is_kept: bool,
    actions: tuple[Action, ...],
    events: tuple[Event, ...],
) -> tuple[Step, Planned]:
    given = view.spec.plan_ref is not None
    reason = Reason.PLAN_GIVEN if given else Reason.PLAN_WRITTEN
    message = f"{plan.num_tables} tables on {plan.world_size} devices by {plan.algorithm} in ConfigMap {name}"
    before = view.status.cost or Cost()
    digest = f"sha256:{plan.hash}"
    is_other = view.status.plan is None or view.status.plan.hash != digest
    measured = None if is_other else before.measured
    step = Step(
        shown=Stage.LAUNCHING,
        reason=reason,
        message=message,
        done=True,
        says=(says(ConditionType.PLANNED, reason, message, holds=True),),
        actions=actions,
        events=events,
        facts={
            "plan": PlanStatus(
                config_map_ref=ConfigMapReference(name=name, key=plan.key),
                hash=digest,
                inputs_hash=inputs_hash,
                algorithm=plan.algorithm,
                world_size=plan.world_size,
            ),
            "cost": Cost(
                predicted=plan.predicted,
                baseline=plan.baseline,
                measured=measured,
                error_percent=None if is_other else before.error_percent,
            ),
        },
        courses=(
            Course(
                stage=StageName.PLANNING,
                state=StageState.SKIPPED if given else StageState.SUCCEEDED,
                message=message,
            ),
        ),
    )
    return step, Planned(summary=plan, name=name, is_kept=is_kept)


def _attempt(view: View, inputs_hash: str, profiled: Profiled, algorithm: Algorithm | None) -> Step:
    name = names.planner_job(view.name, inputs_hash)
    job = view.job_named(name)
    if job is None:
        return _start(view, inputs_hash, profiled, algorithm)
    if job.outcome is None:
        stuck = trouble(view.pods_of(job))
        reason = Reason.PODS_PENDING if stuck else Reason.PLANNER_RUNNING
        message = f"the planner's pod does not start: {stuck}" if stuck else _plans(view, name)
        asked = _request(view, inputs_hash, profiled, algorithm)  # another pod may start and read it
        inputs = [] if isinstance(asked, Step) else [asked]
        repairs, events = ensured(view, [*access(view, names.PLANNER, names.result(name)), *inputs])
        return _active(reason, message, name, actions=repairs, events=events)
    if not job.outcome.succeeded:
        return _failed_job(view, job, cause_of(job, view.observed.pods))
    late = (job.outcome.time or view.now) + RESULT_LATE
    result = view.config_map(names.result(name))
    problem = _problem_with(view, result)
    if problem is None and view.now < late:
        message = "the planner is done; its plan is on the way"
        return _active(Reason.PLANNER_RUNNING, message, name, look_again_s=seconds_until(late, view.now))
    if problem is None and was_deleted(job, result):
        message = f"the result of Job {name} was deleted; it plans again"
        actions, events = removed(job, message)
        return _active(Reason.PLANNER_RUNNING, message, name, actions=actions, events=events)
    return _unusable(problem or "the planner ended well and published no plan")


def _problem_with(view: View, result: ChildConfigMap | None) -> str | None:
    """Return what is wrong with a published plan; None where there is none yet. One that fits was found before."""
    document = result.document if result else None
    if isinstance(document, Unreadable):
        return f"the planner's result cannot be used: {document.problem}"
    if isinstance(document, PlanSummary):
        found = mismatch(view, document)
        return found[1] if found else None
    return None


def _plans(view: View, name: str) -> str:
    return f"Job {name} plans for {view.spec.trainer.world_size} devices"


def _request(view: View, inputs_hash: str, profiled: Profiled, algorithm: Algorithm | None) -> Manifest | Step:
    """Return what the planner is asked, or the step that says why it cannot be asked."""
    tables = tables_of(view)
    if not isinstance(tables, TableSet):
        return tables
    try:
        request = plan_request(view.job, tables=tables, topology=profiled.topology, algorithm=algorithm)
        reserve = min(request.memory.reserve_fraction + MORE_RESERVE * (view.status.replans or 0), MOST_RESERVE)
        memory = request.memory.model_copy(update={"reserve_fraction": reserve})
        text = request.model_copy(update={"memory": memory}).to_json()
        return request_file(view, inputs_hash, text)
    except (ConfigMapTooLargeError, DocumentError) as error:
        message = f"the planner's request does not fit into one ConfigMap: {error}"
        return failed(shown=Stage.PLANNING, stage=StageName.PLANNING, reason=Reason.INPUT_TOO_LARGE, message=message)
    except ValueError as error:
        return failed(shown=Stage.PLANNING, stage=StageName.PLANNING, reason=Reason.INVALID_INPUT, message=str(error))


def _start(view: View, inputs_hash: str, profiled: Profiled, algorithm: Algorithm | None) -> Step:
    request = _request(view, inputs_hash, profiled, algorithm)
    if isinstance(request, Step):
        return request
    name = names.planner_job(view.name, inputs_hash)
    result = names.result(name)
    job = planner_job(view, inputs_hash=inputs_hash, request=request, bundle=profiled.bundle, result=result)
    actions, events = ensured(view, [*access(view, names.PLANNER, result), request, job])
    return _active(Reason.PLANNER_RUNNING, _plans(view, name), name, actions=actions, events=events)


def _failed_job(view: View, job: ChildJob, cause: Cause) -> Step:
    assert job.outcome is not None, "the caller looked"
    if job.outcome.reason == "DeadlineExceeded":
        reason = Reason.PLANNING_TIMED_OUT
        message = f"planning took longer than planner.timeoutSeconds ({view.spec.planner.timeout_seconds} s)"
    elif cause.exit_code == ExitCode.INFEASIBLE:
        reason = Reason.INFEASIBLE
        message = f"no plan fits: {described(cause)}"
    else:
        reason = Reason.PLANNING_FAILED
        message = f"the planner failed: {described(cause)}"
    return failed(
        shown=Stage.PLANNING,
        stage=StageName.PLANNING,
        reason=reason,
        message=message,
        failure=cause.recorded(Stage.PLANNING, view.now),
    )


def _unusable(message: str) -> Step:
    return failed(shown=Stage.PLANNING, stage=StageName.PLANNING, reason=Reason.PLAN_UNUSABLE, message=message)


def _active(
    reason: Reason,
    message: str,
    job_name: str | None,
    *,
    actions: tuple[Action, ...] = (),
    events: tuple[Event, ...] = (),
    look_again_s: float | None = None,
) -> Step:
    return Step(
        shown=Stage.PLANNING,
        reason=reason,
        message=message,
        says=(says(ConditionType.PLANNED, reason, message, holds=False),),
        actions=actions,
        events=events,
        courses=(Course(stage=StageName.PLANNING, state=StageState.ACTIVE, job_name=job_name, message=message),),
        look_again_s=look_again_s,
    )

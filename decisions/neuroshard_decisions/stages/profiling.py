"""Profiling: cost models of the hardware, from the namespace's profiles, a profiler Job, or the user."""

from dataclasses import replace
from datetime import datetime

from neuroshard_api.documents.config_map import ConfigMapTooLargeError
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.preparation import ProfilerPolicy
from neuroshard_api.job.status import ConfigMapReference, HardwareStatus, ProfileStatus, Stage, StageName, StageState

from neuroshard_decisions import names
from neuroshard_decisions.actions import (
    Action,
    BundleSource,
    Delete,
    Event,
    EventReason,
    Files,
    GivenModels,
    Keep,
    ProfilerRun,
    Start,
)
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import PATIENCE, Context
from neuroshard_decisions.files import job_files
from neuroshard_decisions.hardware import hardware_for, on_one_node
from neuroshard_decisions.observed.objects import ChildConfigMap, ChildJob, OtherProfiler
from neuroshard_decisions.observed.results import MANIFEST_FILE, ProfileSummary, Unreadable
from neuroshard_decisions.stages.given_models import given_models
from neuroshard_decisions.stages.input_hashes import takes_given_models
from neuroshard_decisions.stages.network import (
    met_before,
    network_measured,
    network_not_measured,
    nodes_did_not_meet,
)
from neuroshard_decisions.stages.result import StageResult, StageUpdate, condition
from neuroshard_decisions.stages.stage_job import JobStage, follow, once_more
from neuroshard_decisions.stages.tables import tables_of

PROFILING = JobStage(
    stage=Stage.PROFILING,
    name=StageName.PROFILING,
    condition=ConditionType.PROFILED,
    role=names.PROFILER,
    running=Reason.PROFILER_RUNNING,
    failed=Reason.PROFILING_FAILED,
    timed_out=Reason.PROFILING_TIMED_OUT,
    unusable=Reason.PROFILE_UNUSABLE,
    time_limit="profiling took longer than experimental.profiler.timeoutSeconds",
    result="result",
    again="the hardware is measured again",
)


def hardware_of(context: Context) -> HardwareStatus:
    """Return the hardware that was recorded when profiling began, or what the nodes say now.

    They are asked again while the profiler's pod finds no node: its kind of GPU may have been cordoned or removed.
    Where profilers on two nodes did not meet, one node is profiled.
    """
    recorded = context.status.hardware
    nodes = context.observed.nodes
    rules = context.rules
    if recorded is not None and recorded.fingerprint and (nodes is None or not finds_no_node(context, recorded)):
        chosen = recorded
    else:
        chosen = hardware_for(
            context.as_asked.spec,
            nodes or (),
            profiler_image=rules.profiler_image,
            product_labels=rules.gpu_product_labels,
        )
    if not nodes_did_not_meet(context, _own_profiler(context, _profile_key(context, chosen))):
        return chosen
    return on_one_node(context.as_asked.spec, chosen, profiler_image=rules.profiler_image)


def finds_no_node(context: Context, hardware: HardwareStatus) -> bool:
    """Return whether this job's profiler of that hardware has waited for a node for as long as patience lasts."""
    own = _own_profiler(context, _profile_key(context, hardware))
    if own is None or own.outcome is not None or own.suspended or own.meta.created is None:
        return False
    return context.now >= own.meta.created + PATIENCE and not any(pod.node for pod in context.pods_of(own))


def profile_hardware(context: Context) -> tuple[StageResult, GivenModels | None]:
    """Return the result of profiling, and the profile once there is one."""
    if takes_given_models(context.spec):
        return given_models(context)
    hardware = hardware_of(context)
    key = _profile_key(context, hardware)
    shared = context.spec.profiler.policy is not ProfilerPolicy.ALWAYS
    there = context.shared_profile(names.profile(key))
    own = _own_profiler(context, key)
    name = own.meta.name if own else _profiler_name(context, hardware, key)
    result = context.config_map(names.result(name))
    if there is not None:
        is_own = own is not None and result is not None and isinstance(result.document, ProfileSummary)
        step, profiled = _there(context, hardware, there, cached=not is_own)
        needed = own if is_own or profiled is None else None
        return replace(step, actions=(*step.actions, *_superfluous(context, needed))), profiled
    step = _measured(context, hardware, own, result, shared=shared)
    found, events = network_not_measured(context, hardware)
    return replace(
        step,
        warnings=found,
        actions=(*step.actions, *_superfluous(context, own)),
        events=(*step.events, *events),
        status_fields={"hardware": hardware},
    ), None


def _profiler_name(context: Context, hardware: HardwareStatus, key: str) -> str:
    named = names.network_profiler_job if hardware.network_nodes else names.profiler_job
    return named(context.name, key)


def _measured(
    context: Context, hardware: HardwareStatus, own: ChildJob | None, result: ChildConfigMap | None, *, shared: bool
) -> StageResult:
    """Return the result of profiling while there is no profile: its Job, and then the profile made of its result."""
    key = _profile_key(context, hardware)
    if result is not None and isinstance(result.document, ProfileSummary):
        keep = Keep(
            name=names.profile(key),
            role=names.PROFILE,
            labels={names.PROFILE_KEY_LABEL: names.short(key)},
            is_shared=shared,
            source=result.meta.name,
            source_version=result.meta.resource_version,
        )
        name = own.meta.name if own else _profiler_name(context, hardware, key)
        return PROFILING.active(Reason.PROFILER_RUNNING, _measures(name), name, actions=(keep,))
    return _start(context, hardware, key) if own is None else _watch(context, own, result)


def _superfluous(context: Context, needed: ChildJob | None) -> tuple[Action, ...]:
    """Remove this job's other profilers: their hardware is gone, or another job has measured it."""
    return tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid, wait_for_pods=True)
        for job in context.owned_jobs(names.PROFILER)
        if job is not needed and job.outcome is None and job.meta.deleted is None
    )


def _own_profiler(context: Context, key: str) -> ChildJob | None:
    """Return this job's profiler of that key; a release before this one may have given it another name."""
    label = names.short(key)
    found = [job for job in context.owned_jobs(names.PROFILER) if job.meta.labels.get(names.PROFILE_KEY_LABEL) == label]
    usual = {names.profiler_job(context.name, key), names.network_profiler_job(context.name, key)}
    return min(found, key=lambda job: job.meta.name not in usual, default=None)


def profile_needed(context: Context) -> tuple[str, ...]:
    """Return the namespace's profile of the job's hardware, if there is one that was not read in this version."""
    found = context.shared_profile(names.profile(_profile_key(context, hardware_of(context))))
    return () if found is None or found.is_read else (found.meta.name,)


def _there(
    context: Context, hardware: HardwareStatus, there: ChildConfigMap, *, cached: bool
) -> tuple[StageResult, GivenModels | None]:
    """Take the profile that there is, or remove it where it cannot be used."""
    document = there.document
    if isinstance(document, ProfileSummary):
        try:
            return _have(context, hardware, there, document, cached=cached)
        except DocumentError as error:  # it lacks the network that this job's nodes span
            problem = str(error)
    else:
        problem = document.problem if isinstance(document, Unreadable) else "it is empty"
    return replace(_set_aside(there, problem), status_fields={"hardware": hardware}), None


def _profile_key(context: Context, hardware: HardwareStatus) -> str:
    """Return the key of the profile: of the hardware, or with policy Always of this job's own measurement."""
    assert hardware.fingerprint, "hardware_for always makes one"
    if context.spec.profiler.policy is ProfilerPolicy.ALWAYS:
        return names.key_of(hardware.fingerprint, context.uid)
    return hardware.fingerprint


def _have(
    context: Context, hardware: HardwareStatus, there: ChildConfigMap, document: ProfileSummary, *, cached: bool
) -> tuple[StageResult, GivenModels]:
    recorded = context.status.profile
    if recorded is not None and recorded.config_map_ref and recorded.config_map_ref.name == there.meta.name:
        cached = bool(recorded.cached)
    reason = Reason.CACHE_HIT if cached else Reason.PROFILE_WRITTEN
    link = network_measured(hardware, document.hardware)
    message = f"cost models of {document.source} in ConfigMap {there.meta.name}{link}"
    topology = document.hardware.topology(
        num_nodes=context.spec.trainer.num_nodes, devices_per_node=context.spec.trainer.devices_per_node
    )
    warnings, events = network_not_measured(context, hardware)
    step = StageResult(
        display_stage=Stage.PLANNING,
        reason=reason,
        message=message,
        done=True,
        conditions=(condition(ConditionType.PROFILED, reason, message, holds=True),),
        warnings=warnings,
        events=events,
        status_fields={
            "hardware": hardware,
            "profile": ProfileStatus(
                config_map_ref=ConfigMapReference(name=there.meta.name, key=MANIFEST_FILE),
                cached=cached,
                source=document.source,
            ),
        },
        stage_updates=(
            StageUpdate(
                stage=StageName.PROFILING,
                state=StageState.SKIPPED if cached else StageState.SUCCEEDED,
                message=message,
            ),
        ),
    )
    return step, GivenModels(bundle=BundleSource(config_map=there.meta.name), topology=topology)


def _set_aside(there: ChildConfigMap, problem: str) -> StageResult:
    """Remove a profile that cannot be used; the next pass profiles again."""
    message = f"profile {there.meta.name} cannot be used and is deleted: {problem}"
    return PROFILING.active(
        Reason.PROFILER_RUNNING,
        message,
        None,
        actions=(Delete(kind="ConfigMap", name=there.meta.name, uid=there.meta.uid),),
        events=(Event(reason=EventReason.CHILD_REPAIRED, message=message),),
    )


def _start(context: Context, hardware: HardwareStatus, key: str) -> StageResult:
    other = context.observed.other_profilers.get(names.short(key))
    if other is not None and _is_worth_waiting_for(other, context.now):
        message = f"job {other.owner} profiles the same hardware; its profile will be shared"
        return PROFILING.active(Reason.OTHER_PROFILES, message, None, requeue_after_s=15.0)
    files = _files(context)
    if isinstance(files, StageResult):
        return files
    name = _profiler_name(context, hardware, key)
    run = ProfilerRun(name=name, hardware=hardware, profile_key=key, files=files)
    return PROFILING.active(Reason.PROFILER_RUNNING, _measures(name), name, actions=(Start(run=run),))


def _is_worth_waiting_for(other: OtherProfiler, now: datetime) -> bool:
    """Return whether another job's profiler runs or has only just begun to wait for a node, which this job may get."""
    return other.is_running or other.created is None or now < other.created + PATIENCE


def _files(context: Context) -> Files | StageResult:
    """Return the input files of the profiler's pod, or the result that explains why there are none."""
    tables = tables_of(context)
    if not isinstance(tables, TableSet):
        return tables
    try:
        return job_files(context.as_asked, tables)
    except (ConfigMapTooLargeError, DocumentError) as error:
        message = f"the tables do not fit into one ConfigMap next to the job: {error}"
        return PROFILING.failed_with(Reason.INPUT_TOO_LARGE, message)


def _watch(context: Context, job: ChildJob, result: ChildConfigMap | None) -> StageResult:
    if met_before(context, job):
        message = f"node 0 of Job {job.meta.name} was lost after its peer had ended; {PROFILING.again}"
        return once_more(PROFILING, job, message)
    files = _files(context) if job.outcome is None else None
    return follow(
        context,
        PROFILING,
        job,
        doing=_measures(job.meta.name),
        inputs=[files] if isinstance(files, Files) else [],
        problem=result.document.problem if result and isinstance(result.document, Unreadable) else None,
        timeout_s=context.spec.experimental.profiler.timeout_seconds,
    )


def _measures(name: str) -> str:
    return f"the hardware has no profile yet; Job {name} measures it"

"""Profiling: cost models of the hardware, from the namespace's profiles, a profiler Job, or the user."""

from dataclasses import replace

from neuroshard_api.config_map import ConfigMapTooLargeError
from neuroshard_api.document import DocumentError
from neuroshard_api.job_stages import ProfilerPolicy
from neuroshard_api.job_status import ConfigMapReference, Hardware, ProfileStatus, Stage, StageName, StageState
from neuroshard_api.tables import TableSet

from neuroshard_operator import names
from neuroshard_operator.actions import Action, CopyConfigMap, Delete, Event, Manifest
from neuroshard_operator.children.access import REPAIRED, access, ensured
from neuroshard_operator.children.files import job_files, profile
from neuroshard_operator.children.stage_jobs import Bundle, profiler_job
from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.context import View, seconds_until
from neuroshard_operator.failures import cause_of, trouble
from neuroshard_operator.hardware import hardware_for
from neuroshard_operator.observed.objects import ChildConfigMap, ChildJob
from neuroshard_operator.observed.results import MANIFEST_FILE, ProfileSummary, Unreadable
from neuroshard_operator.stages.given_models import Profiled, given_models
from neuroshard_operator.stages.input_hashes import takes_given_models
from neuroshard_operator.stages.result import Course, Step, described, failed, says
from neuroshard_operator.stages.results import RESULT_LATE, removed, was_deleted
from neuroshard_operator.stages.tables import tables_of


def hardware_of(view: View) -> Hardware:
    """Return the hardware that was recorded when profiling began, or what the nodes say now."""
    recorded = view.status.hardware
    if recorded is not None and recorded.fingerprint:
        return recorded
    return hardware_for(view.spec, view.observed.nodes, profiler_image=view.settings.profiler_image)


def profile_hardware(view: View) -> tuple[Step, Profiled | None]:
    """Return what profiling wants, and the profile once there is one."""
    if takes_given_models(view.spec):
        return given_models(view)
    hardware = hardware_of(view)
    key = _profile_key(view, hardware)
    shared = view.spec.profiler.policy is not ProfilerPolicy.ALWAYS
    there = view.shared_profile(names.profile(key))
    own = view.job_named(names.profiler_job(view.name, key))
    result = view.config_map(names.result(names.profiler_job(view.name, key)))
    if there is not None and isinstance(there.document, ProfileSummary):
        return _have(view, hardware, there, there.document, cached=own is None)
    facts = {"hardware": hardware}
    if there is not None:
        return _set_aside(there, facts), None
    if result is not None and isinstance(result.document, ProfileSummary):
        manifest = profile(view, names.profile(key), key, shared=shared)
        copy = CopyConfigMap(manifest=manifest, source=result.meta.name, source_version=result.meta.resource_version)
        message = _measures(names.profiler_job(view.name, key))
        return _active(Reason.PROFILER_RUNNING, message, own, facts, actions=(copy,)), None
    if own is None:
        return _start(view, hardware, key, facts), None
    return _watch(view, own, result, facts), None


def _profile_key(view: View, hardware: Hardware) -> str:
    """Return the key of the profile: of the hardware, or with policy Always of this job's own measurement."""
    assert hardware.fingerprint, "hardware_for always makes one"
    if view.spec.profiler.policy is ProfilerPolicy.ALWAYS:
        return names.key_of(hardware.fingerprint, view.uid)
    return hardware.fingerprint


def _have(
    view: View, hardware: Hardware, there: ChildConfigMap, document: ProfileSummary, *, cached: bool
) -> tuple[Step, Profiled]:
    recorded = view.status.profile
    if recorded is not None and recorded.config_map_ref and recorded.config_map_ref.name == there.meta.name:
        cached = bool(recorded.cached)
    reason = Reason.CACHE_HIT if cached else Reason.PROFILE_WRITTEN
    message = f"cost models of {document.source} in ConfigMap {there.meta.name}"
    step = Step(
        shown=Stage.PLANNING,
        reason=reason,
        message=message,
        done=True,
        says=(says(ConditionType.PROFILED, reason, message, holds=True),),
        facts={
            "hardware": hardware,
            "profile": ProfileStatus(
                config_map_ref=ConfigMapReference(name=there.meta.name, key=MANIFEST_FILE),
                cached=cached,
                source=document.source,
            ),
        },
        courses=(
            Course(
                stage=StageName.PROFILING,
                state=StageState.SKIPPED if cached else StageState.SUCCEEDED,
                message=message,
            ),
        ),
    )
    topology = document.hardware.topology(
        num_nodes=view.spec.trainer.num_nodes, devices_per_node=view.spec.trainer.devices_per_node
    )
    return step, Profiled(bundle=Bundle(config_map=there.meta.name), topology=topology)


def _set_aside(there: ChildConfigMap, facts: dict[str, Hardware]) -> Step:
    """Remove a profile that nobody can read; the next look profiles anew."""
    problem = there.document.problem if isinstance(there.document, Unreadable) else "it is empty"
    message = f"profile {there.meta.name} cannot be used and is deleted: {problem}"
    return _active(
        Reason.PROFILER_RUNNING,
        message,
        None,
        facts,
        actions=(Delete(kind="ConfigMap", name=there.meta.name, uid=there.meta.uid),),
        events=(Event(kind="Warning", reason=REPAIRED, message=message),),
    )


def _start(view: View, hardware: Hardware, key: str, facts: dict[str, Hardware]) -> Step:
    other = view.observed.other_profilers.get(names.short(key))
    if other is not None:
        message = f"job {other} profiles the same hardware; its profile will be shared"
        return _active(Reason.OTHER_PROFILES, message, None, facts, look_again_s=15.0)
    files = _files(view)
    if isinstance(files, Step):
        return files
    name = names.profiler_job(view.name, key)
    job = profiler_job(view, hardware=hardware, profile_key=key, files=files, result=names.result(name))
    children = [*access(view, names.PROFILER, names.result(name)), files, job]
    actions, events = ensured(view, children)
    message = _measures(name)
    return _active(Reason.PROFILER_RUNNING, message, None, facts, actions=actions, events=events, job_name=name)


def _files(view: View) -> Manifest | Step:
    """Return what the profiler's pod reads, or the step that says why there is nothing to read."""
    tables = tables_of(view)
    if not isinstance(tables, TableSet):
        return tables
    try:
        return job_files(view, tables)
    except (ConfigMapTooLargeError, DocumentError) as error:
        message = f"the tables do not fit into one ConfigMap beside the job: {error}"
        return failed(shown=Stage.PROFILING, stage=StageName.PROFILING, reason=Reason.INPUT_TOO_LARGE, message=message)


def _watch(view: View, job: ChildJob, result: ChildConfigMap | None, facts: dict[str, Hardware]) -> Step:
    outcome = job.outcome
    if outcome is None:
        files = _files(view)  # another pod may start and read them, after a failure too
        inputs = [] if isinstance(files, Step) else [files]
        repairs, events = ensured(view, [*access(view, names.PROFILER, names.result(job.meta.name)), *inputs])
        return replace(_running(view, job, facts), actions=repairs, events=events)
    if not outcome.succeeded:
        cause = cause_of(job, view.observed.pods)
        timed_out = outcome.reason == "DeadlineExceeded"
        reason = Reason.PROFILING_TIMED_OUT if timed_out else Reason.PROFILING_FAILED
        limit = f"profiling took longer than profiler.timeoutSeconds ({view.spec.profiler.timeout_seconds} s)"
        return failed(
            shown=Stage.PROFILING,
            stage=StageName.PROFILING,
            reason=reason,
            message=limit if timed_out else f"the profiler failed: {described(cause)}",
            failure=cause.recorded(Stage.PROFILING, view.now),
        )
    late = (outcome.time or view.now) + RESULT_LATE
    if view.now < late and not (result is not None and isinstance(result.document, Unreadable)):
        message = "the profiler is done; its result is on the way"
        return _active(Reason.PROFILER_RUNNING, message, job, facts, look_again_s=seconds_until(late, view.now))
    if was_deleted(job, result):
        message = f"the result of Job {job.meta.name} was deleted; the hardware is measured again"
        actions, events = removed(job, message)
        return _active(Reason.PROFILER_RUNNING, message, job, facts, actions=actions, events=events)
    problem = result.document.problem if result and isinstance(result.document, Unreadable) else "it published nothing"
    return failed(
        shown=Stage.PROFILING,
        stage=StageName.PROFILING,
        reason=Reason.PROFILE_UNUSABLE,
        message=f"the profiler ended well and its result cannot be used: {problem}",
    )


def _running(view: View, job: ChildJob, facts: dict[str, Hardware]) -> Step:
    if job.suspended and view.is_queued:
        message = f"Job {job.meta.name} waits for Kueue to admit it"
        step = _active(Reason.QUEUED, message, job, facts)
        return queued(step, message)
    stuck = trouble(view.pods_of(job))
    if stuck:
        return _active(Reason.PODS_PENDING, f"the profiler's pod does not start: {stuck}", job, facts)
    return _active(Reason.PROFILER_RUNNING, _measures(job.meta.name), job, facts)


def _measures(name: str) -> str:
    return f"the hardware has no profile yet; Job {name} measures it"


def queued(step: Step, message: str) -> Step:
    """Return the step of a stage whose Job Kueue holds back."""
    held = says(ConditionType.SUSPENDED, Reason.QUEUED, message, holds=True)
    return replace(step, shown=Stage.SUSPENDED, reason=Reason.QUEUED, message=message, says=(*step.says, held))


def _active(
    reason: Reason,
    message: str,
    job: ChildJob | None,
    facts: dict[str, Hardware],
    *,
    actions: tuple[Action, ...] = (),
    events: tuple[Event, ...] = (),
    look_again_s: float | None = None,
    job_name: str | None = None,
) -> Step:
    name = job_name or (job.meta.name if job else None)
    return Step(
        shown=Stage.PROFILING,
        reason=reason,
        message=message,
        says=(says(ConditionType.PROFILED, reason, message, holds=False),),
        actions=actions,
        events=events,
        facts=facts,
        courses=(Course(stage=StageName.PROFILING, state=StageState.ACTIVE, job_name=name, message=message),),
        look_again_s=look_again_s,
    )

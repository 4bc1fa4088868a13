"""What a pass decided as writes to the API server: a run becomes a Job and what its pods need. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuroshard_decisions import names
from neuroshard_decisions.actions import (
    Action,
    Ask,
    CalibratorRun,
    Change,
    Decision,
    Delete,
    Event,
    Files,
    Keep,
    PlannerRun,
    ProfilerRun,
    Run,
    Start,
    Sustain,
    Write,
)
from neuroshard_decisions.context import Context, UnreadableJob

from neuroshard_operator.children.access import access, ensured
from neuroshard_operator.children.job_sets import as_one, job_set
from neuroshard_operator.children.meeting import profiler_service
from neuroshard_operator.children.metadata import labels, metadata
from neuroshard_operator.children.quota import quota_job
from neuroshard_operator.children.stage_jobs import calibrator_job, planner_job, profiler_job
from neuroshard_operator.children.workers import server_job, service, worker_job
from neuroshard_operator.settings import Settings
from neuroshard_operator.writes import AnyWrite, CopyConfigMap, Create, Manifest, Patch, Restore, Writes

_OF_ONE_JOB = {names.JOB_LABEL, "app.kubernetes.io/instance"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """Makes the writes of one pass."""

    context: Context
    settings: Settings

    def writes_of(self, action: Action) -> tuple[tuple[AnyWrite, ...], tuple[Event, ...]]:
        """Return the writes of an action, and an event for each child that it repairs."""
        context = self.context
        match action:
            case Start(run=run):
                is_met = isinstance(run, ProfilerRun) and bool(run.hardware.network_nodes)
                needed = self._surroundings(run.role, run.result, is_met=is_met)
                files = [] if isinstance(run, CalibratorRun) else [_config_map(context, run.files)]
                return ensured(context, [*needed, *files, *self._jobs(run)])
            case Ask():
                return self._asked(action), ()
            case Sustain():
                needed = self._surroundings(action.role, action.result, is_met=action.is_met)
                return ensured(context, [*needed, *(_config_map(context, files) for files in action.files)])
            case Write(files=files):
                return (Create(manifest=_config_map(context, files)),), ()
            case Keep():
                manifest = _kept(context, action)
                write: AnyWrite = CopyConfigMap(
                    manifest=manifest, source=action.source, source_version=action.source_version
                )
            case Change():
                write = _patch(action)
            case _:
                write = as_one(context, action)
        return (write,), ()

    def places_of(self, action: Action) -> frozenset[tuple[str, str]]:
        """Return kind and name of the objects that an action makes."""
        writes, _ = self.writes_of(action)
        manifests = [each.manifest for each in writes if isinstance(each, Create | Restore | CopyConfigMap)]
        return frozenset((manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests)

    def _asked(self, ask: Ask) -> tuple[AnyWrite, ...]:
        """Return the write of a question that is not there."""
        is_there = self.context.job_named(ask.name) is not None
        return () if is_there else (Create(manifest=quota_job(self.context, self.settings, ask)),)

    def _surroundings(self, role: str, result: str, *, is_met: bool) -> Sequence[Manifest]:
        """Return the objects that pods of a role need: access to the ConfigMap that they publish to, and host names."""
        needed = access(self.context, role, result)
        if role == names.WORKER:
            return [service(self.context), *needed]
        return [*needed, *([profiler_service(self.context)] if is_met else [])]

    def _jobs(self, run: Run) -> Sequence[Manifest]:
        context, settings = self.context, self.settings
        match run:
            case ProfilerRun():
                return [profiler_job(context, settings, run)]
            case PlannerRun():
                return [planner_job(context, settings, run)]
            case CalibratorRun():
                return [calibrator_job(context, settings, run)]
        workers = worker_job(context, settings, run)
        if run.servers is None:
            return [workers]
        servers = server_job(context, settings, run, run.servers)
        if run.job_set is None:
            return [workers, servers]
        return [job_set(context, run, {names.WORKER: workers, names.SERVER: servers})]


def as_writes(context: Context | UnreadableJob, decision: Decision, settings: Settings) -> Writes:
    """Return the writes of a decision, in its order."""
    made: list[AnyWrite] = []
    repaired: list[Event] = []
    if isinstance(context, Context):
        writer = Writer(context=context, settings=settings)
        for action in decision.actions:
            writes, events = writer.writes_of(action)
            made += [each for each in writes if not isinstance(each, Delete) or each not in made]
            repaired += events
    return Writes(
        status=decision.status,
        actions=tuple(made),
        events=(*decision.events, *repaired),
        requeue_after_s=decision.requeue_after_s,
    )


def _config_map(context: Context, files: Files) -> dict[str, Any]:
    named = metadata(context, files.name, files.role, files.labels)
    filled = {"data": dict(files.packed.data), "binaryData": dict(files.packed.binary_data)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True, **filled}


def _kept(context: Context, action: Keep) -> dict[str, Any]:
    """Return a ConfigMap without its data, which is copied. A shared one has no owner: it outlives the job."""
    named = metadata(context, action.name, action.role, action.labels)
    if action.is_shared:
        all_labels = labels(context, action.role, **action.labels)
        kept = {key: value for key, value in all_labels.items() if key not in _OF_ONE_JOB}
        named = {"name": action.name, "namespace": named["namespace"], "labels": kept}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "immutable": True}


def _patch(action: Change) -> Patch:
    fields = {
        "parallelism": action.parallelism,
        "suspend": action.suspended,
        "activeDeadlineSeconds": action.deadline_s,
    }
    spec = {key: value for key, value in fields.items() if value is not None}
    metadata = {"labels": dict(action.labels), "annotations": dict(action.annotations)}
    found = {key: value for key, value in metadata.items() if value}
    change: dict[str, Any] = {**({"spec": spec} if spec else {}), **({"metadata": found} if found else {})}
    return Patch(kind=action.kind, name=action.name, uid=action.uid, change=change)

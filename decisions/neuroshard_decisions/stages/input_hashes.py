"""What a plan and a start of the workers depend on, as hashes: the same inputs never lead to a second plan."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_api.job.plan_request import counts_dense, segments_grow
from neuroshard_api.job.preparation import ProfilerPolicy
from neuroshard_api.job.resource import Part
from neuroshard_api.job.spec import AFFECTS, Spec
from neuroshard_api.job.status import HardwareStatus

from neuroshard_decisions.context import Context

_HOW_IT_RUNS = {"timeout_seconds", "backoff_limit", "image", "resources", "pod_metadata"}
"""Fields that say how a stage's pod runs and not what it decides."""
_OF_OTHER_PODS = {"profiler", "planner"}
"""Fields of spec.experimental that the workers do not see. The plan that they lead to is hashed by itself."""
_REPEATS = {"session_column", "deduplication", "shuffle"}
"""Fields of spec.data that decide whether a plan may leave out repeated lists, next to how sessions are drawn."""


def replans_of(context: Context) -> int:
    """Return the number of times that a failure rule asked for another plan of these inputs, and not of others."""
    status = context.status
    if not status.replans or status.replans_inputs_hash not in {None, asked_hash(context)}:
        return 0
    return status.replans


def asked_hash(context: Context) -> str:
    """Return a hash of what the user asks a plan for, whatever nodes, hardware, and cost models it is made with."""
    return plan_inputs_hash(context.as_asked.spec, None, replans=0, table_changes=context.status.table_changes or 0)


def takes_given_models(spec: Spec) -> bool:
    """Return whether cost models that were made before replace profiling."""
    policy = spec.profiler.policy
    has_reference = spec.profiler.cost_model_ref is not None
    return policy is ProfilerPolicy.NEVER or (has_reference and policy is not ProfilerPolicy.ALWAYS)


def plan_inputs_hash(
    spec: Spec,
    hardware: HardwareStatus | None,
    *,
    replans: int,
    table_changes: int = 0,
    candidate: int = 0,
    correction: str | None = None,
    at_hand: str = "",
) -> str:
    """Return a hash of everything that decides the plan.

    The contents of a ConfigMap with tables are not in it: they are read when a plan is made, and compared with the
    plan's when the job is resumed. `table_changes` is how often they were others, `replans` how often a failure rule
    asked for another plan, and `candidate` the number of the accepted plan for changed inputs, 0 where there is none.
    `correction` is the name of the corrected cost models that were chosen when planning began, `at_hand` a digest of
    what an adapter has itself.
    """
    given = takes_given_models(spec)
    said = {
        "model": _said(spec.model),
        "planner": _said(spec.planner, leave_out={"fallback_algorithm"}),
        "plan_ref": _said(spec.plan_ref) if spec.plan_ref else None,
        "num_nodes": spec.trainer.num_nodes,
        "devices_per_node": spec.trainer.devices_per_node,
        "profile": _said(spec.profiler) if given else hardware.fingerprint if hardware else None,
        "replans": replans,
    }
    if spec.variants:
        said["variants"] = {each.name: _said(each.model) for each in spec.variants}
    if spec.experimental.embedding_servers is not None:
        said["embedding_servers"] = _said(spec.experimental.embedding_servers, leave_out={"node_selector"})
    if table_changes:
        said["table_changes"] = table_changes
    if candidate:
        said["candidate"] = candidate
    if correction is not None:
        said["correction"] = correction
    if at_hand:
        said["at_hand"] = at_hand
    return _hash(said | _asked(spec))


def fallback_hash(inputs_hash: str, algorithm: str) -> str:
    """Return the hash of the same inputs with the fallback algorithm."""
    return _hash({"inputs": inputs_hash, "algorithm": algorithm})


def workers_hash(spec: Spec, plan_hash: str) -> str:
    """Return a hash of what the workers run, which may change only while the job is suspended.

    The pod template is not in it: a change of it waits for the next start.
    """
    parts: Mapping[str, Part | Sequence[Part] | None] = {
        name: getattr(spec, name) for name, affected in AFFECTS.items() if affected.workers
    }
    said: dict[str, object] = {name: _said(part) for name, part in parts.items() if isinstance(part, Part)}
    if spec.variants:
        said["variants"] = [_said(each) for each in spec.variants]
    said["experimental"] = _said(spec.experimental, leave_out=_OF_OTHER_PODS)
    return _hash(said | {"plan": plan_hash})


def _asked(spec: Spec) -> dict[str, Any]:
    """Return the other settings that decide the request of a job, those that are set."""
    said: dict[str, Any] = {}
    few, training = spec.experimental, spec.training
    if counts_dense(spec):
        said |= _said(training, only={"dense_optimizer", "precision"})
    if counts_dense(spec) and spec.dense_choices is not None:
        said["dense_parallelism"] = spec.dense_choices.model_dump(mode="json", exclude_defaults=True)
    if spec.trainer.command:  # its plans have no copies on all devices, and its dense part is not counted
        said["own_trainer"] = True
    if not segments_grow(spec):
        said["expandable_segments"] = False
    said |= _said(few, only={"pipeline"})
    communication = _said(training.communication) | _said(few.communication, leave_out={"guard"})
    search = _said(few.planner, leave_out=_HOW_IT_RUNS)
    said |= {name: part for name, part in (("communication", communication), ("search", search)) if part}
    if spec.model.chooses_batch_size:
        said |= _said(spec.data, only={"num_samples"})
    if spec.has_sessions:
        said["sessions"] = _said(spec.data, only=_REPEATS) | _said(few.data, only={"session_run", "synthetic_sessions"})
    return said


def _said(part: Part, *, leave_out: set[str] | None = None, only: set[str] | None = None) -> dict[str, Any]:
    # Defaults are left out, so that a release which adds a field does not change the hashes of running jobs.
    return part.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=leave_out, include=only)


def _hash(said: object) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

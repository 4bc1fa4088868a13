"""What a pass at a job wants done to the cluster, as values. Does nothing itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from neuroshard_api.job.status import Status

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Create:
    """Make an object unless it is there. One of that name that the job does not own is left alone and reported."""

    manifest: Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """Set the fields of `manifest` on ours of that name again: lists and maps in them become equal to it."""

    manifest: Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyConfigMap:
    """Make the ConfigMap `manifest` with the data of another one, whose version must still be the one that was seen."""

    manifest: Manifest
    source: str
    source_version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """Merge `change` into an object that is still the one that was seen."""

    kind: str
    name: str
    uid: str
    change: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delete:
    """Delete an object that is still the one that was seen; harmless when it is gone."""

    kind: str
    name: str
    uid: str
    wait_for_pods: bool = False
    """Keep a Job's object until its pods are gone, so that nobody takes their place before."""


Action = Create | Restore | CopyConfigMap | Patch | Delete


class EventReason(StrEnum):
    """What an event about a job reports. Reasons stay the same over releases; `make tables` documents them."""

    PROFILED = "Profiled"
    """Cost models of the hardware are there."""
    PLANNED = "Planned"
    """The plan is there."""
    RUNNING = "Running"
    """All workers train."""
    SUSPENDED = "Suspended"
    """The job is suspended, by its user or by Kueue."""
    SUCCEEDED = "Succeeded"
    """The job succeeded."""
    FAILED = "Failed"
    """The job failed; the message begins with the reason of the condition `Failed`."""
    WORKERS_RESTARTED = "WorkersRestarted"
    """All workers restart; the message has the cause and the count."""
    DRIFT_DETECTED = "DriftDetected"
    """Steps became lastingly slower, or for another cause; the message has cause, ranks, tables, and first step."""
    BETTER_PLAN_FOUND = "BetterPlanFound"
    """A candidate plan pays; the message has gain, price, and the command that takes it."""
    PLAN_REPLACED = "PlanReplaced"
    """A candidate plan was taken; the workers restart under it."""
    COMPRESSION_SUSPENDED = "CompressionSuspended"
    """A guard suspended narrow types, of pooled embeddings or of gradients, one event for each; the message has step
    and change.
    """
    MODELS_CORRECTED = "CostModelsCorrected"
    """The cost models were corrected by the job's steps, and kept; the message has name and error."""
    MODELS_NOT_CORRECTED = "CostModelsNotCorrected"
    """The job's steps correct no cost models; the message has the cause."""
    SLOW_NODE = "SlowNode"
    """The workers restart elsewhere; the message has the node and its price."""
    NETWORK_NOT_MEASURED = "NetworkNotMeasured"
    """The plan takes the usual network of the device type; the message has the cause."""
    CHILD_REPAIRED = "ChildRepaired"
    """A child was edited or damaged, a result deleted, or the node of a profiler or planner lost; it is repaired."""
    VIEW_OUTDATED = "ViewOutdated"
    """Several passes in a row found that what they had seen changed meanwhile; the message has the object."""


_WARNINGS = {
    EventReason.FAILED,
    EventReason.WORKERS_RESTARTED,
    EventReason.DRIFT_DETECTED,
    EventReason.COMPRESSION_SUSPENDED,
    EventReason.SLOW_NODE,
    EventReason.NETWORK_NOT_MEASURED,
    EventReason.CHILD_REPAIRED,
    EventReason.VIEW_OUTDATED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line for `kubectl describe`."""

    reason: EventReason
    message: str

    @property
    def kind(self) -> str:
        """Normal or Warning: a reason always has the same one."""
        return "Warning" if self.reason in _WARNINGS else "Normal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """What a reconcile pass needs to read that no watch brings."""

    nodes: bool = False
    files: tuple[tuple[str, str], ...] = ()
    """ConfigMaps of users, by name and key."""
    documents: tuple[str, ...] = ()
    """ConfigMaps of the job, and its profile, by name."""
    jobs: tuple[str, ...] = ()
    """Jobs that no watch shows, by name."""
    events: tuple[str, ...] = ()
    """uids of Jobs and pods whose last Warning event is needed."""

    def __bool__(self) -> bool:
        """Return whether there is anything to read."""
        return self.nodes or bool(self.files or self.documents or self.jobs or self.events)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What one pass decided."""

    status: Status | None = None
    """The status to write before anything else; None: as it is."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after_s: float | None = None
    """Seconds until the next pass. None: it follows the next change."""

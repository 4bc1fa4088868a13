"""What a pass at a job wants done to the cluster, as values. Does nothing itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line for `kubectl describe`."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


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

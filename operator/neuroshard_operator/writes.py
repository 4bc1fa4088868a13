"""Writes of one pass to the API server, as values. Does nothing itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuroshard_api.job.status import Status
from neuroshard_decisions.actions import Delete, Event

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


AnyWrite = Create | Restore | CopyConfigMap | Patch | Delete


@dataclass(frozen=True, kw_only=True, slots=True)
class Writes:
    """What one pass writes."""

    status: Status | None = None
    """Before anything else; None: as it is."""
    actions: tuple[AnyWrite, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after_s: float | None = None
    """Seconds until the next pass. None: it follows the next change."""

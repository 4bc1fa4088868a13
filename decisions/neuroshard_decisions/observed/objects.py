"""What the operator sees of one job: the resource and its children, trimmed to what decisions need. Calls no API."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from neuroshard_decisions.observed.results import ResultDocument

OF_ANOTHER_NAMESPACE = "of another namespace"
"""In place of the name of a job that this job's users may not know of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meta:
    """The metadata of an object that decisions need."""

    name: str
    uid: str = ""
    resource_version: str = ""
    owner_uid: str = ""
    """uid of the controlling owner; empty where there is none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    deleted: datetime | None = None
    """When it must be gone; None while nobody asked for that."""
    created: datetime | None = None


@dataclass(frozen=True, slots=True)
class JsonText:
    """A mapping as compressed JSON: its objects would take 20 times the memory for as long as the job is there."""

    packed: bytes

    @classmethod
    def of(cls, text: bytes) -> "JsonText":
        """Keep a text."""
        return cls(zlib.compress(text, 1))

    def read(self) -> dict[str, Any]:
        """Return the mapping; empty where the text is none."""
        found = json.loads(zlib.decompress(self.packed))
        return found if isinstance(found, dict) else {}


NOTHING = JsonText.of(b"{}")
KEPT_SPEC_BYTES = 16 * 1024
"""Of a compressed spec that is kept between passes. One of 100 tables has 2 KiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJobObject:
    """The custom resource itself, as the API server has it."""

    meta: Meta
    namespace: str
    generation: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)
    managed_by: str = ""
    """spec.managedBy; empty where it is not given."""
    stored_spec: JsonText | None = NOTHING
    """None: it is large, and read again for each pass."""
    stored_status: JsonText = NOTHING
    unreadable: str = ""
    """Why the resource cannot be read; empty: it can."""

    @property
    def spec(self) -> dict[str, Any]:
        """The spec, made from its text each time."""
        assert self.stored_spec is not None, "a pass reads a large one first"
        return self.stored_spec.read()

    @property
    def to_keep(self) -> "TrainingJobObject":
        """The same without a spec that is large: thousands of jobs of one tenant must not fill the memory of all."""
        is_large = self.stored_spec is not None and len(self.stored_spec.packed) > KEPT_SPEC_BYTES
        return replace(self, stored_spec=None) if is_large else self

    @property
    def status(self) -> dict[str, Any]:
        """The status, made from its text each time."""
        return self.stored_status.read()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """How a Job ended."""

    succeeded: bool
    reason: str
    message: str
    time: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSetName:
    """The JobSet that joins the Jobs of an attempt: they are deleted with it, and held by Kueue with it."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildJob:
    """A Job of the profiler, the planner or the workers."""

    meta: Meta
    role: str
    attempt: int = 0
    parallelism: int = 1
    completions: int | None = None
    suspended: bool = False
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    start_time: datetime | None = None
    deadline_s: int | None = None
    """spec.activeDeadlineSeconds: the time from `start_time` after which Kubernetes ends the Job."""
    outcome: JobEnd | None = None
    """None while the Job runs or waits."""
    least_pods: int | None = None
    """Fewest pods that Kueue may admit. None: all or none."""
    lost_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the Job was made with and that somebody has removed or changed since."""
    job_set: JobSetName | None = None
    """What it is a part of. None: nothing joins it with another Job."""
    is_made: bool = True
    """Whether it is there, and not in its JobSet alone, whose controller makes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Termination:
    """How a container ended."""

    container: str
    exit_code: int | None
    """None where the pod ended as a whole."""
    reason: str
    message: str
    """The end of what the container wrote, as the kubelet keeps it."""
    time: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildPod:
    """A pod of one of the Jobs."""

    meta: Meta
    role: str
    attempt: int = 0
    index: int | None = None
    node: str = ""
    placed: datetime | None = None
    """When the node was chosen; None where that is not known."""
    phase: str = "Pending"
    ready: bool = False
    ended_well: bool = False
    """The stage's container ended without an error, whatever runs next to it; the phase says so later."""
    exit_code: int | None = None
    """Exit code of the stage's container; None while it has not ended."""
    beside: tuple[str, ...] = ()
    """Names of the other containers that run: the pod lives as long as they do."""
    started: datetime | None = None
    """When the stage's container started; None where it has not, or where that is not known."""
    never_ran: bool = False
    """The pod ended before any container ran, as one that a kubelet rejected."""
    termination: Termination | None = None
    """The end of the stage's container with an error, or of the one that failed the pod; None where none did."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Status by type, of the conditions that are not plain steps of a pod's life."""
    disruption: str = ""
    """Why the cluster took the pod away; empty where it did not."""
    reason: str = ""
    """status.reason: Evicted for node pressure, Terminated for the shutdown of its node; empty for most pods."""
    waiting: str = ""
    """Why a container does not start, or why no node takes the pod; empty where nothing is known to be wrong."""

    @property
    def live(self) -> bool:
        """Whether a process of the pod may be running or may still start."""
        return self.phase not in {"Succeeded", "Failed"}

    @property
    def is_outlived(self) -> bool:
        """Whether the stage's container has ended and others keep the pod alive."""
        return self.live and self.exit_code is not None and bool(self.beside)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildConfigMap:
    """A ConfigMap of the operator, without its data."""

    meta: Meta
    role: str
    immutable: bool = False
    content_hash: str = ""
    """sha256 of the plan in it, in hexadecimal; empty for other contents."""
    is_read: bool = False
    """Whether the data was read; watches bring none of it."""
    document: ResultDocument = None
    """What the data says, as far as decisions and status need it; None while nothing is published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildObject:
    """Any other child: ServiceAccount, Role, RoleBinding, Service."""

    kind: str
    meta: Meta
    content_hash: str
    """Hash of the fields that the operator sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taint:
    """What keeps pods without a matching toleration off a node."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node: what hardware it has, and which pods it takes."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    """Whether it is cordoned."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """Extended resources that it offers to pods, by name."""
    memory_bytes: int | None = None
    """Memory that it offers to pods. None: it does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A write of a child that the API server refused for good."""

    kind: str
    name: str
    code: int
    message: str
    foreign: bool = False
    """An object of that name belongs to someone else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """A ConfigMap of the user's that the job names, read for this pass."""

    name: str
    key: str
    content: bytes | None
    """What is under the key; None where the ConfigMap or the key is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherProfiler:
    """A profiler Job of another job in the namespace."""

    owner: str
    """Name of the job that it profiles for."""
    created: datetime | None
    """None where it is about to be made."""
    is_running: bool
    """Whether its pod runs; it may wait for a node as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Everything that one pass at a job sees."""

    job: TrainingJobObject
    jobs: Sequence[ChildJob] = ()
    missing_jobs: frozenset[tuple[str, int]] = frozenset()
    """Role and attempt of Jobs that this pass asked for and that are not there, or are not the job's."""
    pods: Sequence[ChildPod] = ()
    config_maps: Sequence[ChildConfigMap] = ()
    """Those of the job, and the profiles of its namespace."""
    objects: Sequence[ChildObject] = ()
    nodes: Sequence[Node] | None = None
    """Nodes of the cluster; empty where they may not be read, None where this pass has not asked."""
    other_profilers: Mapping[str, OtherProfiler] = field(default_factory=dict)
    """Profiler Jobs of other jobs in the namespace, by profile key: of several the one that is nearest to its end."""
    refusals: Sequence[Refusal] = ()
    """Writes of the pass before that were refused."""
    half_started: tuple[str, ...] = ()
    """Other jobs that hold devices and wait for more, as this one does."""
    fetched: Sequence[Fetched] = ()
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """ConfigMaps of the job, and its profile, as this pass read them, by name: a copy of one need not read it again."""
    warnings: Mapping[str, str] = field(default_factory=dict)
    """The last Warning event of Jobs without pods and of pods that do not start, by uid; empty: none was written."""


def without_log_tails(observed: Observed) -> Observed:
    """Return the same without what containers wrote; what the cluster says of a pod stays."""
    return replace(observed, pods=tuple(map(_without_log_tail, observed.pods)))


def _without_log_tail(pod: ChildPod) -> ChildPod:
    end = pod.termination
    return pod if end is None or not end.container else replace(pod, termination=replace(end, message=""))

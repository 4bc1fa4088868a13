"""What a pass at a job wants done, as values: what is to run, and what is to be kept. Does nothing itself.

Each adapter makes its own of them: a cluster Jobs and ConfigMaps, one machine processes and files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from neuroshard_api.documents.config_map import ConfigMapContents, pack_files
from neuroshard_api.documents.document import COMPRESSED_SUFFIX
from neuroshard_api.documents.topology import DeviceType, Topology
from neuroshard_api.job.status import HardwareStatus, Status

from neuroshard_decisions import names


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files that are written once, under a name that their content or their inputs decide."""

    name: str
    role: str
    contents: Mapping[str, bytes]
    labels: Mapping[str, str] = field(default_factory=dict)
    """In addition to those of all children."""

    @cached_property
    def packed(self) -> ConfigMapContents:
        """The same as the data of one ConfigMap. Raises ConfigMapTooLargeError."""
        return pack_files(self.contents)

    @property
    def stored_names(self) -> Mapping[str, str]:
        """Keys of the ConfigMap by the file that they hold: large ones are compressed."""
        keys: Sequence[str] = [*self.packed.data, *self.packed.binary_data]
        return {key.removesuffix(COMPRESSED_SUFFIX): key for key in keys}


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleSource:
    """Where the planner finds its cost models: one of a ConfigMap, a volume, and the planner's own."""

    config_map: str | None = None
    claim: str | None = None
    path: str | None = None
    """Folder in the claim's volume."""
    device_type: str | None = None
    """Device whose bundled cost models are taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenModels:
    """Cost models, and the devices and links that they are for."""

    bundle: BundleSource
    topology: Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateInputs:
    """What a candidate plan is made from besides its request: the plan in force, and the inputs as they are now."""

    plan: str
    """ConfigMap of the plan."""
    plan_key: str
    inputs: str
    """ConfigMap of the reports."""
    inputs_key: str
    """Key of the input statistics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfilerRun:
    """The profiler, on one node of the hardware, or on several, whose network it measures too."""

    name: str
    hardware: HardwareStatus
    profile_key: str
    files: Files
    """The job and its tables."""
    role: ClassVar[str] = names.PROFILER

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels by which decisions recognize it."""
        return {names.PROFILE_KEY_LABEL: names.short(self.profile_key)}

    @property
    def result(self) -> str:
        """Where it publishes the profile."""
        return names.result(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerRun:
    """The planner, and before it what counts the dense part, where the job's plan depends on it."""

    name: str
    inputs_hash: str
    files: Files
    """The request."""
    bundle: BundleSource
    device: DeviceType
    in_force: CandidateInputs | None = None
    """What the plan is near to. None: nothing."""
    role: ClassVar[str] = names.PLANNER

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels by which decisions recognize it."""
        return {names.INPUTS_HASH_LABEL: names.short(self.inputs_hash)}

    @property
    def result(self) -> str:
        """Where it publishes the plan."""
        return names.result(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibratorRun:
    """What corrects cost models by measured steps."""

    name: str
    profile: str
    """The cost models' ConfigMap."""
    in_force: CandidateInputs
    """ConfigMaps of the plan and of the reports."""
    report_keys: tuple[str, ...]
    """Keys of the reports of steps."""
    role: ClassVar[str] = names.CALIBRATOR

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels by which decisions recognize it."""
        return {}

    @property
    def result(self) -> str:
        """Where it publishes the corrected profile."""
        return names.result(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersRun:
    """All workers of one attempt, one on each node, and its embedding servers."""

    name: str
    attempt: int
    plan: str
    """The plan's ConfigMap."""
    plan_key: str
    workers_hash: str
    """Of what they run."""
    files: Files
    """The job."""
    result: str
    """Where they publish their reports."""
    host_bytes: int
    """Tables in host memory, on the node with most."""
    nodes_per_rack: int | None
    """Consecutive nodes that the plan has in one rack. None: it has no racks."""
    node_labels: Mapping[str, str]
    """Of the nodes that the plan was made for; empty: any."""
    avoided_nodes: tuple[str, ...]
    """Nodes that failed or were slow: others are preferred."""
    servers: str | None
    """Name of the embedding servers, which are started with them. None: there are none, or the workers start them."""
    job_set: str | None
    """Name of what joins both, so that Kueue admits both or none. None: nothing does."""
    role: ClassVar[str] = names.WORKER

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels by which decisions recognize it."""
        return {names.INPUTS_HASH_LABEL: names.short(self.workers_hash)}


Run = ProfilerRun | PlannerRun | CalibratorRun | WorkersRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Start something, with all that it needs, unless it is there."""

    run: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Keep a question to the queue, unless it is there: whether it has quota for more workers than run.

    No pass that leaves the question out keeps it, but one without workers.
    """

    name: str
    run: WorkersRun
    """The workers that run."""
    num_nodes: int
    """Workers in addition; the answer may be fewer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sustain:
    """Keep what something that was started needs to go on and to publish: a pod that starts later reads it too."""

    role: str
    result: str
    files: tuple[Files, ...] = ()
    is_met: bool = False
    """Whether several of them find each other by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """Keep files that the pass has at hand, unless they are there."""

    files: Files


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Keep what was published under a name of its own, unless it is there: nobody changes it then."""

    name: str
    role: str
    source: str
    source_version: str
    """Which the source must still have."""
    labels: Mapping[str, str] = field(default_factory=dict)
    is_shared: bool = False
    """Whether it outlives the job, for others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Change a child that is still the one that was seen."""

    kind: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    parallelism: int | None = None
    suspended: bool | None = None
    deadline_s: int | None = None
    """From its start on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delete:
    """Delete a child, or the job, that is still the one that was seen; harmless when it is gone."""

    kind: str
    name: str
    uid: str
    wait_for_pods: bool = False
    """Keep a Job's object until its pods are gone, so that nobody takes their place before."""


Action = Start | Ask | Sustain | Write | Keep | Change | Delete


class EventReason(StrEnum):
    """What an event about a job reports. Reasons stay the same over releases; `make tables` documents them."""

    PROFILED = "Profiled"
    """Cost models of the hardware are there."""
    PLANNED = "Planned"
    """The plan is there."""
    RUNNING = "Running"
    """All workers train."""
    RESIZED = "Resized"
    """An elastic job starts on another number of nodes, or on fewer than its maximum; the message has the cause."""
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
    DATA_ANOMALY = "DataAnomaly"
    """The loss rose, or the data differ from those at the start; the message has column and range of samples."""
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
    EventReason.DATA_ANOMALY,
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
    jobs: tuple[tuple[str, int], ...] = ()
    """Jobs of attempts that no watch shows, by role and attempt."""
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

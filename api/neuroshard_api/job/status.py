"""What the operator says of a DLRMTrainingJob: the ``status`` of the custom resource."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.bundle import Source
from neuroshard_api.documents.counts import Count
from neuroshard_api.job.elastic import ElasticStatus
from neuroshard_api.job.policies import ConditionStatus
from neuroshard_api.job.replanning import ReplanningStatus
from neuroshard_api.job.resource import ATOMIC, Part, Unique

Small = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=1024)]
Sentence = Annotated[str, Field(max_length=32768)]
Excerpt = Annotated[str, Field(max_length=4096)]


class Stage(StrEnum):
    """Where a job is, for people; nothing decides from it."""

    PENDING = "Pending"
    PROFILING = "Profiling"
    PLANNING = "Planning"
    LAUNCHING = "Launching"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


class StageName(StrEnum):
    """The stages that do work."""

    PROFILING = "Profiling"
    PLANNING = "Planning"
    LAUNCHING = "Launching"
    RUNNING = "Running"


class StageState(StrEnum):
    """How far a stage is."""

    WAITING = "Waiting"
    ACTIVE = "Active"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"


class Condition(Part):
    """One condition, as all Kubernetes resources have them."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Profiled, Planned, Approved, PodsReady, Running, Steady, PlanCurrent, Suspended, Succeeded or Failed."""
    status: ConditionStatus
    """True, False or Unknown."""
    observed_generation: Count | None = None
    """metadata.generation that the condition was decided from."""
    last_transition_time: datetime
    """When status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """Why, in one CamelCase word for programs."""
    message: Sentence
    """Why, in a sentence for people."""


class JobWarning(Part):
    """What deserves attention while the job goes on."""

    reason: Annotated[str, Field(min_length=1, max_length=64)]
    """What it is about, in one CamelCase word for programs."""
    message: Sentence
    """What is found, and what to do, in a sentence for people."""
    time: datetime
    """When it was first found."""


class StageStatus(Part):
    """One stage's course."""

    name: StageName
    """The stage."""
    state: StageState | None = None
    """How far it is; Skipped where its result was there already."""
    attempts: Small | None = None
    """How often it was started."""
    start_time: datetime | None = None
    """When it was started; after a restart or a suspension, when it was started again."""
    completion_time: datetime | None = None
    """When it ended."""
    job_name: Text | None = None
    """The Kubernetes Job that does its work; its pods carry the logs."""
    message: Excerpt | None = None
    """What it waits for, or how it ended."""


class Workers(Part):
    """The worker pods."""

    desired: Small | None = None
    """Pods that are wanted: spec.trainer.numNodes, of an elastic job elastic.numNodes, or 0 while suspended."""
    active: Small | None = None
    """Pods of the present attempt that run."""
    ready: Small | None = None
    """Pods of the present attempt that are ready: with NeuroShard's trainer, those that train under the plan."""
    succeeded: Small | None = None
    """Pods of the present attempt that succeeded."""
    failed: Small | None = None
    """Pods of the present attempt that failed."""
    selector: Text | None = None
    """Label selector of the pods."""


class Servers(Part):
    """The pods of embedding servers."""

    desired: Small | None = None
    """Pods that are wanted: spec.experimental.embeddingServers.replicas, or 0 while suspended."""
    ready: Small | None = None
    """Pods of the present attempt that are ready: they have their tables and serve the trainers."""


class HardwareStatus(Part):
    """The devices that the job was profiled on."""

    gpu_product: Text | None = None
    """Product name of the GPU as its node's label says it; without GPUs the node's instance type or architecture."""
    gpu_product_label: Text | None = None
    """Label of nodes that has the product's name; the job's pods are kept to nodes with it."""
    gpus_per_node: Small | None = None
    """GPUs that the job uses of a node; 0 where it trains on the CPU."""
    gpu_memory_mib: Annotated[Count | None, Field(alias="gpuMemoryMiB")] = None
    """Memory of one device, in MiB."""
    node_memory_mib: Annotated[Count | None, Field(alias="nodeMemoryMiB")] = None
    """Memory that each node of the kind offers to pods, in MiB. Absent: not known, or tables are not stored there."""
    driver_version: Text | None = None
    """Version of the device's driver."""
    network_nodes: Small | None = None
    """Nodes between which the network is profiled. Absent: it is not; one node is profiled."""
    fingerprint: Text | None = None
    """Hash of all that decides whether a profile still holds; equal fingerprints share one."""


class ConfigMapReference(Part):
    """A ConfigMap that the operator made."""

    name: Text
    """Its name."""
    key: Text | None = None
    """Key of the document in it."""


class ProfileStatus(Part):
    """The cost models that the plan was made with."""

    config_map_ref: ConfigMapReference | None = None
    """ConfigMap of the bundle."""
    cached: bool | None = None
    """Whether an earlier job had measured it."""
    source: Source | None = None
    """Where its numbers come from: measured:DEVICE, cpu:MODEL or simulated:DEVICE."""
    corrected_by: Text | None = None
    """ConfigMap of the bundle as measured steps of other jobs corrected it, which the plan was made with. If unset: it
    was made with the bundle as it was measured."""
    corrected_error_percent: Small | None = None
    """Error of the corrected bundle on steps that it was not fitted to, in percent."""


class CorrectionStatus(Part):
    """What came of correcting the cost models by the job's own steps."""

    plan_hash: Text
    """SHA-256 of the plan whose steps they are; each plan is corrected for once."""
    config_map_ref: ConfigMapReference | None = None
    """ConfigMap of the corrected bundle. If unset: none was kept."""
    error_percent: Small | None = None
    """Error on steps that it was not fitted to, in percent. If unset: not known."""
    message: Sentence | None = None
    """What came of it, in a sentence."""


class BatchStatus(Part):
    """What model.batchSizePerDevice Auto came to. It stays when the job is planned again."""

    samples_per_device: Count
    """Samples per device and step."""
    embedding_learning_rate: Text
    """training.embeddingLearningRate for them."""
    dense_learning_rate: Text
    """training.denseLearningRate for them."""


class PlanStatus(Part):
    """The plan that the workers train under."""

    config_map_ref: ConfigMapReference | None = None
    """Immutable ConfigMap of the plan."""
    hash: Text | None = None
    """SHA-256 of the plan document."""
    inputs_hash: Text | None = None
    """SHA-256 of model, world size, fingerprint and planner settings; when it changes, the job is planned again."""
    algorithm: Text | None = None
    """What found the plan."""
    world_size: Small | None = None
    """Devices that it is for."""


class DuplicationFactor(Part):
    """How much the lists of a group repeat."""

    group: Text | None = None
    """Name of the duplication group."""
    factor: Text | None = None
    """Samples over distinct ones, as a decimal number."""


class StepCostStatus(Part):
    """Time of the embedding part of one step, of the slowest device."""

    total_microseconds: Count | None = None
    """All of it, in microseconds."""
    compute_microseconds: Count | None = None
    """Forward and backward kernels, with updates of data_parallel tables and what waits for host memory, in
    microseconds."""
    forward_communication_microseconds: Count | None = None
    """Forward all-to-all with the wait for its slowest member, in microseconds."""
    backward_communication_microseconds: Count | None = None
    """Backward all-to-all, in microseconds."""
    expansion_microseconds: Count | None = None
    """Copies of pooled embeddings to samples that repeat a list, and back, in microseconds. If unset: no repeated lists
    are left out."""
    server_hidden_microseconds: Count | None = None
    """What embedding servers do ahead while the step computes, in microseconds; not in the total. If unset: rows are
    looked up in their own step."""
    dense_microseconds: Count | None = None
    """Forward and backward pass of the dense part with the collectives that they wait for, of the slowest device, in
    microseconds; not in the total."""
    step_microseconds: Count | None = None
    """A whole step, dense part included, in microseconds. A measured one has waiting for data in it, a predicted one
    what the host does; it is unset where the dense part was not counted."""
    source: Source | None = None
    """Where the numbers come from: measured:DEVICE, cpu:MODEL or simulated:DEVICE."""
    duplication_factors: (
        Annotated[tuple[DuplicationFactor, ...], Field(max_length=64, json_schema_extra=ATOMIC)] | None
    ) = None
    """Samples over distinct ones of the groups whose repeated lists are left out. If unset: there are none."""


class PredictedCost(StepCostStatus):
    """What the plan should cost."""

    max_device_memory_mib: Annotated[Count | None, Field(alias="maxDeviceMemoryMiB")] = None
    """Memory of the fullest device, in MiB."""


class BestBaseline(Part):
    """The best plan without the search, under the same cost models."""

    algorithm: Text | None = None
    """The best of the baselines."""
    total_microseconds: Count | None = None
    """Its predicted time of the embedding part, in microseconds."""
    step_microseconds: Count | None = None
    """Its predicted whole step, in microseconds. If unset: the dense part was not counted."""


class LeverStatus(Part):
    """What would save time and was not asked for, by the same cost models."""

    name: Text
    """Of the lever, such as wire_types."""
    text: Text
    """Its effect, as a phrase."""
    total_microseconds: Count
    """The predicted time of the embedding part of a step with it, in microseconds."""
    num_samples: Count | None = None
    """Samples of a step with it. If unset: as many as now."""
    saved_percent: Small
    """Share that it saves, in percent: of a step, or per sample where it changes their number."""
    field: Text
    """Field of the job, with the value that turns it on."""


class HostBoundPart(StrEnum):
    """A part of a step by its time in the status."""

    COMPUTE = "Compute"
    FORWARD_COMMUNICATION = "ForwardCommunication"
    BACKWARD_COMMUNICATION = "BackwardCommunication"
    EXPANSION = "Expansion"
    DENSE = "Dense"


class MeasuredCost(StepCostStatus):
    """What the workers measured."""

    host_bound_parts: Annotated[tuple[HostBoundPart, ...], Field(max_length=5, json_schema_extra=ATOMIC)] | None = None
    """Parts whose kernels the host launches later than the device could run them in most steps: their times have the
    waiting for the host in them. If unset: there are none."""
    peer_wait_microseconds: Count | None = None
    """Waiting in exchanges, of the rank that waits most, for ranks that came later than their lookups explain; not in
    the total. If unset: it is not known."""
    processor_wait_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Of the time in which the worker that had least of a processor could run: the part in which it waited for one. If
    unset: it is not known."""
    steps: Count | None = None
    """Steps that were trained until the last report."""
    last_updated_time: datetime | None = None
    """When it was last reported; at most every 30 s."""


class Cost(Part):
    """The predicted cost of the plan, that of the best baseline, what would save time, and the measured cost."""

    predicted: PredictedCost | None = None
    """By the cost models."""
    baseline: BestBaseline | None = None
    """The best baseline, by the same cost models."""
    levers: Annotated[tuple[LeverStatus, ...], Field(max_length=16, json_schema_extra=ATOMIC)] | None = None
    """What would save time, what saves most first. If unset: nothing that is known of."""
    measured: MeasuredCost | None = None
    """By the workers: rolling medians."""
    error_percent: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    """How far the measured total is above the predicted one, in percent; below 0 it is less. Left out where another
    device was measured than the one that was predicted for."""


class Metric(Part):
    """One number of the trainer's."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    """Its name, such as auc."""
    value: Annotated[str, Field(max_length=64)]
    """Its value, as text."""


class TrainerStatus(Part):
    """What the trainer says of itself."""

    progress_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of all steps that are done, in percent."""
    estimated_remaining_seconds: Small | None = None
    """Seconds to the end at the present speed."""
    metrics: Annotated[tuple[Metric, ...], Field(max_length=256, json_schema_extra=ATOMIC)] = ()
    """Numbers such as loss, auc and normalized_entropy; of variants those of the best one, and VARIANT/auc of each."""
    best_variant: Text | None = None
    """Variant with the lowest normalized entropy, or before an evaluation the lowest loss. If unset: the job has no
    variants, or nothing is known of them."""
    last_updated_time: datetime | None = None
    """When it was last reported."""


class CheckpointStatus(Part):
    """The newest checkpoint."""

    path: Text | None = None
    """Its folder."""
    step: Count | None = None
    """Steps that it holds."""
    time: datetime | None = None
    """When it was complete."""


class LastFailure(Part):
    """The last failure of a pod, kept after the pod is gone."""

    stage: Stage | None = None
    """Stage that it happened in."""
    pod_name: Text | None = None
    """The pod."""
    node_name: Text | None = None
    """The node it ran on."""
    container_name: Text | None = None
    """The container that failed."""
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    """Its exit code."""
    reason: Text | None = None
    """Kubernetes' word for it, such as OOMKilled or Evicted."""
    message: Excerpt | None = None
    """The end of its termination message or log."""
    time: datetime | None = None
    """When it happened."""


class Status(Part):
    """What the operator says of the job. Everything is there only once it is known."""

    observed_generation: Count | None = None
    """metadata.generation that the status was made from."""
    stage: Stage | None = None
    """Where the job is, for people: Pending, Profiling, Planning, Launching, Running, Succeeded, Failed, Suspended."""
    reason: Text | None = None
    """Why it is there, in one CamelCase word."""
    message: Sentence | None = None
    """Why it is there, in a sentence."""
    start_time: datetime | None = None
    """When the job was first worked on, or went on after a suspension."""
    completion_time: datetime | None = None
    """When it ended, well or not."""
    restarts: Small | None = None
    """Restarts of all workers, for whatever reason."""
    restarts_count_towards_max: Small | None = None
    """Restarts that count towards failurePolicy.maxRestarts: those after failures, not those after disruptions."""
    next_start_time: datetime | None = None
    """Earliest start of the next attempt, after a restart with a pause. Absent: at once."""
    replans: Small | None = None
    """How often a rule with the action ReplanAndRestart had the job planned again, each time with 5 percent more of the
    devices' memory kept free."""
    replans_inputs_hash: Text | None = None
    """SHA-256 of the spec's planning inputs that replans counts for; with others, no memory is kept free for it."""
    table_changes: Small | None = None
    """How often the ConfigMap of model.embeddingTablesFrom had other tables than the plan when the job was resumed."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=24), Unique(key="type")] = ()
    """What holds: Profiled, Planned, Approved, PodsReady, Running, Steady, PlanCurrent, Suspended, Succeeded, Failed,
    each with a reason."""
    warnings: Annotated[tuple[JobWarning, ...], Field(max_length=24), Unique(key="reason")] = ()
    """What deserves attention while the job goes on; one that no longer holds is gone."""
    stages: Annotated[tuple[StageStatus, ...], Field(max_length=8), Unique(key="name")] = ()
    """The course of each stage."""
    workers: Workers | None = None
    """The worker pods, counted."""
    servers: Servers | None = None
    """The pods of embedding servers, counted. Absent: the job has none."""
    hardware: HardwareStatus | None = None
    """The devices that the job was profiled on."""
    profile: ProfileStatus | None = None
    """The cost models that the plan was made with."""
    correction: CorrectionStatus | None = None
    """The correction of the cost models by the job's own steps."""
    plan: PlanStatus | None = None
    """The plan that the workers train under."""
    batch: BatchStatus | None = None
    """What model.batchSizePerDevice Auto came to. Absent: the job gives a number, or there is no plan yet."""
    cost: Cost | None = None
    """Predicted, baseline and measured time of the embedding part of a step."""
    trainer_status: TrainerStatus | None = None
    """Progress and metrics of the trainer."""
    checkpoint: CheckpointStatus | None = None
    """The newest checkpoint."""
    replanning: ReplanningStatus | None = None
    """Plans for changed inputs, what was decided about them, and the plans that the workers trained under."""
    elastic: ElasticStatus | None = None
    """The number of nodes of a job with experimental.elastic."""
    last_failure: LastFailure | None = None
    """The last failure of a pod."""

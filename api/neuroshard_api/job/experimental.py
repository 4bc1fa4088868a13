"""What few jobs need: ``spec.experimental``, whose fields may change or go with any release."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.tables import EmbeddingDim
from neuroshard_api.job.communication import WireSettings
from neuroshard_api.job.dense import DenseUnits
from neuroshard_api.job.elastic import Elastic
from neuroshard_api.job.resource import ATOMIC, INT32_MAX, Part, Size
from neuroshard_api.job.training import DataSettings, SyntheticDrift, TrainPipeline
from neuroshard_api.job.workers import EmbeddingServers, Image, PodTemplateMetadata, Resources


class StagePods(Part):
    """How the pods of a stage before the training run."""

    image: Image | None = None
    """Image of the stage, with sh and env, the latter of GNU coreutils 8.31 or later to keep a SIGTERM that comes while
    Python starts. If unset: the one the operator was installed with."""
    resources: Resources | None = None
    """Resources of each container. If unset: for the profiler the trainer's resourcesPerNode, so that it meets the same
    devices; for the planner, which needs no GPU, the operator's setting."""
    pod_metadata: PodTemplateMetadata = PodTemplateMetadata.model_construct()
    """Labels and annotations of the pods."""
    timeout_seconds: Annotated[int, Field(ge=1, le=INT32_MAX)]
    """Maximum time of the stage, all its attempts together, in seconds; then the job fails, or the fallback plans. It
    begins when a node takes the first pod: time in a queue, or without a free device, does not count."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 2
    """Attempts after a first one that failed."""


class ProfilerPods(StagePods):
    """How the profiler's pods run, and whether its cost models are corrected."""

    timeout_seconds: Annotated[int, Field(ge=1, le=INT32_MAX)] = 1800
    """Maximum time of the stage, all its attempts together, in seconds; then the job fails. It begins when a node takes
    the first pod: time in a queue, or without a free device, does not count."""
    correct_by_steps: bool = False
    """Whether the job is planned with cost models that the steps of earlier jobs of the namespace corrected, where
    there are some when planning begins, and corrects the profile by its own steps, once they are steady. The result is
    kept where its error on steps that it was not fitted to is the least so far."""


class SearchLimits(StagePods):
    """How the planner's pods run, and what the planner has numbers for."""

    timeout_seconds: Annotated[int, Field(ge=1, le=INT32_MAX)] = 600
    """Maximum time of the stage, all its attempts together, in seconds; then the fallback plans, or the job fails. It
    begins when a node takes the first pod."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the search; equal jobs with equal seeds get equal plans."""
    work_budget: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    """Most device evaluations of the search. If unset: grows with the number of tables and devices."""
    dense_memory_per_device: Size | None = None
    """Memory that the dense part needs on every device: weights, gradients, optimizer state, activations. If unset:
    counted for NeuroShard's own trainer, in the planner's pod with the trainer's image; 0 with a trainer of your
    own. Given: the dense part is replicated."""
    max_shard_width: EmbeddingDim | None = None
    """Most columns of a shard; a multiple of 4, and on GPUs at most 2,048. If unset: what the kernels of the devices
    take, on GPUs 1,024 for tables with pooling, since FBGEMM before 1.7 returns zeros for wider shards."""
    sync_every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """With shardingGroups: steps from one average of tables and optimizer state to the next; above 1 the copies differ
    in between."""


class Rendezvous(Part):
    """How the workers find each other: torchrun's static rendezvous on worker 0."""

    port: Annotated[int, Field(ge=1024, le=65535)] = 29500
    """Port of worker 0 that the others connect to. Of a run on one machine, if unset: any free one."""
    timeout_seconds: Annotated[int, Field(ge=1, le=INT32_MAX)] = 600
    """How long a worker waits for the others, in seconds, before it ends with exit code 7. It starts when the worker's
    container does, so it covers the time in which the other workers wait for a node and pull their image."""


class ResumePolicy(StrEnum):
    """What a start of the workers begins from."""

    LATEST = "Latest"
    NONE = "None"


class CheckpointSettings(Part):
    """How checkpoints are written and taken."""

    resume_policy: ResumePolicy = ResumePolicy.LATEST
    """Latest begins from the newest whole checkpoint, None from the start; an earlier run's checkpoints of later steps
    then stay until this run is past them."""
    in_background: bool = False
    """Whether training continues while a checkpoint is written; the next one waits for it. The state is first copied to
    the host's memory, which needs room for the shards and the optimizer state of all ranks of a node, in addition. The
    default needs no such room: a pod's memory limit is the user's, and a worker above it is killed."""


class Experimental(Part):
    """Settings that few jobs need. Each is off, or at the value that the product has for it, unless it is set."""

    profiler: ProfilerPods = ProfilerPods.model_construct()
    """How the profiler's pods run, and whether its cost models are corrected."""
    planner: SearchLimits = SearchLimits.model_construct()
    """Numbers of the planner, and how its pods run."""
    dense_parallelism: DenseUnits = DenseUnits.model_construct()
    """Which units of the dense part are sharded or recomputed, and how, under training.denseParallelism."""
    communication: WireSettings = WireSettings.model_construct()
    """Types for what travels between devices, and their guard, under training.communication."""
    rendezvous: Rendezvous = Rendezvous.model_construct()
    """How the workers find each other."""
    checkpoint: CheckpointSettings = CheckpointSettings.model_construct()
    """How checkpoints are written and taken."""
    data: DataSettings = DataSettings.model_construct()
    """How samples are drawn, ordered, and read."""
    embedding_servers: EmbeddingServers | None = None
    """Embedding servers: pods next to the workers, or processes of `neuroshard run`. Their ranks come after the
    trainers'. Needs experimental.pipeline None, and the optimizer SGD, Adagrad, or RowWiseAdagrad; in a queue of
    Kueue's also JobSet. Can be changed only while the job is suspended. If unset: there are none."""
    elastic: Elastic | None = None
    """Numbers of nodes that the job may train on, in a cluster: on as many as there are, at most trainer.numNodes, and
    each under a plan of its own. Can be changed only while the job is suspended. If unset: trainer.numNodes alone."""
    pipeline: TrainPipeline = TrainPipeline.SPARSE_DIST
    """SparseDist copies the next batches and exchanges their indices during a step, by TorchRec's
    TrainPipelineSparseDist; None does one thing after the other. The losses are the same bit by bit. Plans leave room
    for the batches in either case."""
    avoid_slow_nodes: bool = True
    """Whether replanning.mode Auto restarts the workers elsewhere if a node is lastingly slower than its peers."""
    synthetic_drift: (
        Annotated[tuple[SyntheticDrift, ...], Field(min_length=1, max_length=256, json_schema_extra=ATOMIC)] | None
    ) = None
    """Changes of the lookups of synthetic samples in mid-training, to try what follows from them; held-out samples stay
    as they are. If unset: none."""
    watch_drift: bool = True
    """Whether lasting slow-downs of steps and changes of the inputs are looked for, and written with their cause into
    drift-report.json and input-statistics.json next to the step report."""

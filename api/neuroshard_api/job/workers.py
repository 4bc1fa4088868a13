"""What a DLRMTrainingJob runs its workers in: ``spec.trainer`` and ``spec.podTemplate``."""

import math
import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from neuroshard_api.documents.counts import MAX_MEMORY_BYTES
from neuroshard_api.documents.served_request import PROCESS_BYTES
from neuroshard_api.documents.servers import ServerPolicy, ServerPool
from neuroshard_api.job.resource import (
    ATOMIC,
    INT_OR_STRING,
    Checked,
    Part,
    ResourceAmount,
    Rule,
    Unique,
    quantity,
)
from neuroshard_api.process.sizes import format_bytes

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/i915", "gpu.intel.com/xe")
"""Extended resources that count as devices, in addition to MIG slices."""
MIG_PREFIX = "nvidia.com/mig-"
"""Begins the names of the resources of MIG slices, which a job can name and which profiler and trainer judge."""
EXTENDED_RESOURCE = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
"""Name of an extended resource: a domain, a slash, and a name."""
_IS_DEVICE = "(name in [" + ", ".join(f"'{name}'" for name in GPU_RESOURCES) + f"] || name.startsWith('{MIG_PREFIX}'))"

_IS_GPU = f"(has(self.gpuResource) ? name == self.gpuResource : {_IS_DEVICE})"
"""The same of a trainer, which may name its resource."""

HAS_GPUS = (
    "(has(self.trainer.resourcesPerNode.limits) && self.trainer.resourcesPerNode.limits.exists(name, "
    f"{_IS_GPU.replace('self.', 'self.trainer.')}))"
)
"""Whether the workers of a spec have GPUs, for the API server."""

MAX_DEVICES_PER_NODE = 4096

OPEN: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""Schema of what is passed on as it is: the API server checks it in the object that it ends up in."""

Image = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^\S+$")]
Words = Annotated[
    tuple[Annotated[str, Field(max_length=8192)], ...],
    Field(max_length=128, json_schema_extra=ATOMIC),
]
Amounts = Annotated[dict[str, ResourceAmount], Field(max_length=32)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=65536)]], Field(max_length=64)]
Fields = Annotated[dict[str, Any], Field(json_schema_extra=OPEN)]


def _is_gpu_count(amount: int | str) -> bool:
    return re.fullmatch(r"[1-9][0-9]{0,3}", str(amount)) is not None


def _is_device(name: str) -> bool:
    return name in GPU_RESOURCES or name.startswith(MIG_PREFIX)


class Resources(Part):
    """Resources of a container, as in a pod."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!has(self.limits) || self.limits.all(name, !{_IS_DEVICE} || "
            "string(self.limits[name]).matches('^[1-9][0-9]{0,3}$'))",
            message="limits of GPUs must be whole numbers from 1 to 9999",
            holds=lambda resources: all(
                _is_gpu_count(amount) for name, amount in resources.limits.items() if _is_device(name)
            ),
        ),
        Rule(
            cel=f"!has(self.limits) || self.limits.filter(name, {_IS_DEVICE}).size() <= 1",
            message="limits must name one kind of GPU",
            holds=lambda resources: sum(map(_is_device, resources.limits)) <= 1,
        ),
    )

    limits: Amounts = Field(default_factory=dict)
    """Most that the container may use, by resource name. nvidia.com/gpu, nvidia.com/mig-*, amd.com/gpu,
    habana.ai/gaudi, gpu.intel.com/i915, gpu.intel.com/xe, or what trainer.gpuResource names is its number of GPUs."""
    requests: Amounts = Field(default_factory=dict)
    """What the scheduler sets aside, by resource name. If unset: the limits."""


class EnvironmentVariable(Part):
    """One environment variable, as in a pod's container."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!self.name.startsWith('PET_')",
            message="PET_* variables are torchrun's own settings, which the operator makes; hint: choose another name",
            holds=lambda variable: not variable.name.startswith("PET_"),
        ),
        Rule(
            cel="!(has(self.value) && has(self.valueFrom))",
            message="set at most one of value and valueFrom",
            holds=lambda variable: variable.value is None or variable.value_from is None,
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    """Name of the variable. Names that begin with PET_ are refused: they are torchrun's own settings."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """Its value; $(NAME) is replaced by the value of an earlier variable. If unset: empty."""
    value_from: Fields | None = None
    """Where its value comes from (configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef), passed on to the pod.
    If unset: value."""


class ServersPolicy(StrEnum):
    """Whether the planner chooses tables for servers."""

    NEVER = "Never"
    IF_NEEDED = "IfNeeded"
    AUTO = "Auto"


class EmbeddingServers(Part):
    """Processes on CPU hosts that hold tables and bring no samples."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.policy != 'Never' || has(self.tables) && size(self.tables) > 0",
            message="embeddingServers holds no table: policy is Never, and tables names none; hint: set policy "
            "IfNeeded or Auto, or name tables",
            holds=lambda servers: servers.policy is not ServersPolicy.NEVER or bool(servers.tables),
        ),
        Rule(
            cel="has(self.resources.limits) && 'memory' in self.resources.limits",
            message="embeddingServers needs a limit of memory in resources, which the planner fills with tables",
            holds=lambda servers: "memory" in servers.resources.limits,
        ),
        Rule(
            cel="!has(self.resources.limits) || !('memory' in self.resources.limits) || "
            f"(quantity(string(self.resources.limits['memory'])).isGreaterThan(quantity('{PROCESS_BYTES}')) && "
            f"!quantity(string(self.resources.limits['memory'])).isGreaterThan(quantity('{MAX_MEMORY_BYTES}')))",
            message="embeddingServers needs a limit of memory of more than 1.5 GiB, which a process takes before it "
            "has tables, and of at most 8 PiB",
            holds=lambda servers: (
                "memory" not in servers.resources.limits
                or PROCESS_BYTES < quantity(servers.resources.limits["memory"]) <= MAX_MEMORY_BYTES
            ),
        ),
        Rule(
            cel="!has(self.resources.requests) || !('memory' in self.resources.requests)",
            message="the limit of memory is what embeddingServers request; hint: leave requests.memory out",
            holds=lambda servers: "memory" not in servers.resources.requests,
        ),
    )

    policy: ServersPolicy = ServersPolicy.NEVER
    """Which tables are on servers besides those of tables: with Never none, with IfNeeded those that fit nowhere else,
    with Auto all with which a step is predicted to be faster. No server is started where the plan has none."""
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Servers: in a cluster one pod each, in a Kubernetes Job of all servers."""
    procs_per_replica: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes of each server. Each has an equal share of its memory, of which 1.5 GiB are not for tables."""
    resources: Resources
    """Resources of each server: the limit of memory, and others, which `neuroshard run` passes over."""
    tables: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=1024), Unique()
    ] = ()
    """Names of the tables that are on servers in any case: large ones with few lookups per sample."""
    node_selector: Labels | None = None
    """Labels of the servers' nodes, such as those of a pool of CPU hosts, in place of nodeSelector and affinity of the
    podTemplate, which are then the workers' alone. Empty: any nodes. If unset: the podTemplate holds for both."""
    lookahead: Annotated[int, Field(ge=0, le=1)] = 0
    """With 1 the rows on servers of a batch are looked up while the step before computes, so that a step takes the
    longer of both times and not their sum. These rows lack the update of the step before, which changes the training a
    little; tables on devices, evaluations, and checkpoints lack none. With 0 each step has all updates."""

    @property
    def num_processes(self) -> int:
        """Processes of all servers."""
        return self.replicas * self.procs_per_replica

    @property
    def pool(self) -> ServerPool:
        """The servers as the planner is asked for them."""
        return ServerPool(
            count=self.replicas,
            processes=self.procs_per_replica,
            memory_bytes=int(quantity(self.resources.limits["memory"])),
            policy=ServerPolicy[self.policy.name],
            tables=self.tables,
            lookahead=1 if self.lookahead else None,
        )


def other_servers(planned: ServerPool | None, servers: EmbeddingServers | None) -> str | None:
    """Return the reason that a plan's servers are not those of a job. None: they are.

    Args:
        planned: those of the plan, if it has tables on them.
        servers: those of the job.
    """
    if planned is None:
        num_named = 0 if servers is None else len(servers.tables)
        return f"the plan has no tables on embedding servers, the job has {num_named} there" if num_named else None
    if servers is None:
        return f"the plan has tables on {planned.num_processes} processes of embedding servers, the job has none"
    own = servers.pool
    missing = next((name for name in servers.tables if name not in planned.tables), None)
    if missing is not None:
        return f"the job has table {missing!r} on embedding servers, the plan's request does not name it"
    numbers = (
        ("embedding servers", planned.count, own.count),
        (
            "processes on each embedding server",
            planned.processes,
            own.processes,
        ),
        ("steps of lookahead on embedding servers", planned.lookahead or 0, servers.lookahead),
    )
    other = next((each for each in numbers if each[1] != each[2]), None)
    if other is not None:
        return f"the plan is for {other[1]} {other[0]}, the job has {other[2]}"
    if planned.memory_bytes <= own.memory_bytes:
        return None
    sizes = format_bytes(planned.memory_bytes), format_bytes(own.memory_bytes)
    return f"the plan is for embedding servers of {sizes[0]} of memory, the job's have {sizes[1]}"


ProcsPerNode = Annotated[
    int | str,
    Checked(
        rules=(
            Rule(
                cel="type(self) == string ? self in ['auto', 'gpu', 'cpu'] : (self >= 1 && self <= 4096)",
                message="must be auto, gpu, cpu or an integer from 1 to 4096",
                holds=lambda value: (
                    value in {"auto", "gpu", "cpu"} if isinstance(value, str) else 1 <= value <= MAX_DEVICES_PER_NODE
                ),
            ),
        ),
        schema=INT_OR_STRING,
    ),
]


class Trainer(Part):
    """The workers: torchrun processes, as many on each node as it has devices."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.gpuResource) || (has(self.resourcesPerNode.limits) && "
            "self.gpuResource in self.resourcesPerNode.limits && "
            "string(self.resourcesPerNode.limits[self.gpuResource]).matches('^[1-9][0-9]{0,3}$'))",
            message="gpuResource must be one of the limits of resourcesPerNode, a whole number from 1 to 9999",
            holds=lambda trainer: (
                trainer.gpu_resource is None or _is_gpu_count(trainer.limits.get(trainer.gpu_resource, ""))
            ),
        ),
        Rule(
            cel="!has(self.gpuResource) || !has(self.resourcesPerNode.limits) || "
            f"self.resourcesPerNode.limits.all(name, name == self.gpuResource || !{_IS_DEVICE})",
            message="limits must name no GPUs but those of gpuResource",
            holds=lambda trainer: (
                trainer.gpu_resource is None
                or not any(_is_device(name) for name in trainer.limits if name != trainer.gpu_resource)
            ),
        ),
        Rule(
            cel="type(self.numProcPerNode) != string || self.numProcPerNode != 'gpu' || "
            "(has(self.resourcesPerNode.limits) && "
            f"self.resourcesPerNode.limits.exists(name, {_IS_GPU}))",
            message="numProcPerNode gpu needs a limit of GPUs in resourcesPerNode, such as nvidia.com/gpu",
            holds=lambda trainer: trainer.num_proc_per_node != "gpu" or trainer.num_gpus_per_node > 0,
        ),
        Rule(
            cel="type(self.numProcPerNode) != string || self.numProcPerNode != 'cpu' || "
            "(has(self.resourcesPerNode.limits) && 'cpu' in self.resourcesPerNode.limits && "
            "!quantity(string(self.resourcesPerNode.limits['cpu'])).isGreaterThan(quantity('4096')))",
            message="numProcPerNode cpu needs a limit of cpu in resourcesPerNode, of at most 4096",
            holds=lambda trainer: (
                trainer.num_proc_per_node != "cpu"
                or ("cpu" in trainer.limits and quantity(trainer.limits["cpu"]) <= MAX_DEVICES_PER_NODE)
            ),
        ),
        Rule(
            cel="type(self.numProcPerNode) == string || "
            "!has(self.resourcesPerNode.limits) || self.resourcesPerNode.limits.all(name, "
            f"!{_IS_GPU} || "
            "!quantity(string(self.resourcesPerNode.limits[name])).isLessThan(quantity(string(self.numProcPerNode))))",
            message="numProcPerNode must not be more than the GPUs of resourcesPerNode",
            holds=lambda trainer: (
                isinstance(trainer.num_proc_per_node, str)
                or trainer.num_gpus_per_node == 0
                or trainer.num_proc_per_node <= trainer.num_gpus_per_node
            ),
        ),
    )

    image: Image | None = None
    """Image of the workers. Unless the job has a command, it needs NeuroShard's trainer, sh and env, the latter of GNU
    coreutils 8.31 or later to keep a SIGTERM that comes while Python starts. If unset: the trainer that the operator
    was installed with."""
    command: Words = ()
    """Your own trainer, such as [torchrun, /app/train.py]: it finds torchrun's settings in PET_* variables and the
    plan in the file that NEUROSHARD_PLAN names. Empty: NeuroShard's trainer, which trains spec.model on spec.data."""
    args: Words = ()
    """Arguments behind the command, or behind those of NeuroShard's trainer."""
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=128), Unique(key="name")] = ()
    """Environment of the workers, in addition to what the operator sets: PET_* and NEUROSHARD_*."""
    num_nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Nodes, one worker pod each. Can be changed only while the job is suspended; then it is planned again."""
    num_proc_per_node: ProcsPerNode = "auto"
    """Processes on each node, one device each: a number; gpu for the GPUs of resourcesPerNode; cpu for its CPUs; auto
    for its GPUs, or 1 where there are none. Can be changed only while the job is suspended."""
    resources_per_node: Resources = Resources.model_construct()
    """Resources of each worker's container. Its memory also holds /dev/shm, which NCCL and data loaders use."""
    gpu_resource: Annotated[str, Field(min_length=3, max_length=317, pattern=EXTENDED_RESOURCE)] | None = None
    """Extended resource that is the workers' GPUs, such as example.com/a100-shared, and one of the limits of
    resourcesPerNode. If unset: that of the known names in the limits. Can be changed only while the job is
    suspended."""

    @property
    def limits(self) -> dict[str, int | str]:
        """Resource limits of a worker."""
        return self.resources_per_node.limits

    @property
    def gpus(self) -> str:
        """Extended resource that a worker's GPUs are; empty where it has none."""
        return self.gpu_resource or next(filter(_is_device, self.limits), "")

    @property
    def num_gpus_per_node(self) -> int:
        """GPUs of a worker; 0: it trains on the CPU."""
        return int(quantity(self.limits[self.gpus])) if self.gpus in self.limits else 0

    @property
    def devices_per_node(self) -> int:
        """Processes on each node, one device each: numProcPerNode as a number."""
        wanted = self.num_proc_per_node
        if isinstance(wanted, int):
            return wanted
        if wanted == "cpu":
            return max(1, math.ceil(quantity(self.limits.get("cpu", 1))))
        return max(1, self.num_gpus_per_node)

    @property
    def world_size(self) -> int:
        """Ranks of the job: processes on all nodes."""
        return self.num_nodes * self.devices_per_node


class PodTemplateMetadata(Part):
    """Labels and annotations of the pods of one role."""

    labels: Labels = Field(default_factory=dict)
    """Labels added to the pods; those of the operator win."""
    annotations: Labels = Field(default_factory=dict)
    """Annotations added to the pods, such as those of Kueue's topology-aware scheduling, or those that keep a proxy
    out of them."""


class PodTemplate(Part):
    """What the operator's own pod template is overlaid with."""

    metadata: PodTemplateMetadata = PodTemplateMetadata.model_construct()
    """Labels and annotations of the workers' pods."""
    spec: Fields = Field(default_factory=dict)
    """Fields of a pod's spec, merged over the operator's by Kubernetes' strategic merge: nodeSelector, tolerations,
    affinity, volumes, resourceClaims, terminationGracePeriodSeconds and so on. The container of the workers is called
    trainer. What decides the node, such as nodeSelector and tolerations, holds for the profiler too, so that it
    measures the same kind of node; imagePullSecrets and priorityClassName hold for the pods of all stages."""

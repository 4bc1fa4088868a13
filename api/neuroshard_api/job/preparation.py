"""What a DLRMTrainingJob does before it trains: ``spec.profiler``, ``spec.planner`` and ``spec.planRef``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from neuroshard_api.documents.request import Algorithm
from neuroshard_api.documents.tables import DataType
from neuroshard_api.job.resource import ATOMIC, INT32_MAX, Name, Part, Rule, Size, Unique
from neuroshard_api.sharding.kernels import TRAINING_KERNELS
from neuroshard_api.sharding.kinds import ShardingType

Seconds = Annotated[int, Field(ge=1, le=INT32_MAX)]


class ProfilerPolicy(StrEnum):
    """When a device is measured."""

    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


class ProfilerBackend(StrEnum):
    """What the profiler measures with."""

    AUTO = "Auto"
    """FBGEMM where it is installed, else torch."""
    FBGEMM = "FBGEMM"
    TORCH_NATIVE = "TorchNative"
    SIMULATED = "Simulated"

    @property
    def option(self) -> str | None:
        """The profiler's ``--backend``; None: it chooses itself."""
        return None if self is ProfilerBackend.AUTO else self.name.lower()


class CostModelReference(Part):
    """Cost models that were trained before."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.configMapName) != has(self.claimName)",
            message="set exactly one of configMapName and claimName",
            holds=lambda ref: (ref.config_map_name is None) != (ref.claim_name is None),
        ),
        Rule(
            cel="has(self.claimName) || !has(self.path)",
            message="path is a folder of the volume and needs claimName",
            holds=lambda ref: ref.claim_name is not None or ref.path is None,
        ),
    )

    config_map_name: Name | None = None
    """ConfigMap that holds the files of a bundle directory: manifest.json and weights.safetensors."""
    claim_name: Name | None = None
    """PersistentVolumeClaim with a bundle directory."""
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^/][^:\x00]*$")] | None = None
    """Folder of the bundle in the volume. If unset: the volume's root."""


class Profiler(Part):
    """How the device and its links are measured, on a node of the workers' kind, for jobs of several nodes on two."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.policy != 'Never' || has(self.costModelRef) || has(self.deviceType)",
            message="policy Never needs costModelRef, or the deviceType whose bundled cost models are taken",
            holds=lambda profiler: (
                profiler.policy is not ProfilerPolicy.NEVER
                or profiler.cost_model_ref is not None
                or profiler.device_type is not None
            ),
        ),
        Rule(
            cel="self.backend != 'Simulated' || has(self.deviceType)",
            message="backend Simulated needs the deviceType that it simulates",
            holds=lambda profiler: (
                profiler.backend is not ProfilerBackend.SIMULATED or profiler.device_type is not None
            ),
        ),
    )

    policy: ProfilerPolicy = ProfilerPolicy.IF_NOT_PRESENT
    """IfNotPresent profiles unless cost models of equal hardware are there already, Always profiles again, Never takes
    those of costModelRef, or else the bundled ones of deviceType."""
    backend: ProfilerBackend = ProfilerBackend.AUTO
    """What is measured: the kernels of FBGEMM, torch's own EmbeddingBag (TorchNative), or nothing but the device
    simulator (Simulated), whose numbers are labelled so wherever they are shown. Auto: FBGEMM where it is installed,
    else TorchNative."""
    device_type: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-z0-9][-a-z0-9.]*$")] | None = None
    """A device of `neuroshard devices`, such as h100-80gb: what Simulated simulates, and what supplies the numbers of
    the data sheet that cannot be read from a device. If unset: recognised by the device's product name."""
    budget_seconds: Seconds | None = None
    """Seconds of measurements; more of them lower the error of the cost models. If unset: about as long as the training
    is expected to take, 1 to 5 minutes; 5 minutes where only the data show its steps."""
    cost_model_ref: CostModelReference | None = None
    """Cost models that were trained before; they replace profiling. Used only where policy is not Always."""


class PlannerAlgorithm(StrEnum):
    """Ways to find a plan."""

    NEUROSHARD = "NeuroShard"
    SIZE_LOOKUP_GREEDY = "SizeLookupGreedy"
    SIZE_GREEDY = "SizeGreedy"
    LOOKUP_GREEDY = "LookupGreedy"
    DIM_GREEDY = "DimGreedy"
    RANDOM = "Random"

    @property
    def algorithm(self) -> Algorithm:
        """The same in the words of the other documents."""
        return Algorithm[self.name]


class FallbackAlgorithm(StrEnum):
    """What plans when the algorithm finds no plan."""

    NONE = "None"
    SIZE_LOOKUP_GREEDY = "SizeLookupGreedy"
    SIZE_GREEDY = "SizeGreedy"
    LOOKUP_GREEDY = "LookupGreedy"
    DIM_GREEDY = "DimGreedy"

    @property
    def algorithm(self) -> Algorithm | None:
        """The same in the words of the other documents; None: there is no fallback."""
        return None if self is FallbackAlgorithm.NONE else Algorithm[self.name]


class TableSharding(StrEnum):
    """Ways to shard a table, in the words of the resource."""

    TABLE_WISE = "TableWise"
    COLUMN_WISE = "ColumnWise"
    ROW_WISE = "RowWise"
    TABLE_ROW_WISE = "TableRowWise"
    GRID = "Grid"
    DATA_PARALLEL = "DataParallel"

    @property
    def sharding_type(self) -> ShardingType:
        """The same in the words of the other documents."""
        return ShardingType[self.name]


class ShardingGroups(Part):
    """Groups of devices that may each hold all tables, averaged after each step."""

    sizes: (
        Annotated[
            tuple[Annotated[int, Field(ge=2, le=INT32_MAX)], ...],
            Field(min_length=1, max_length=16, json_schema_extra=ATOMIC),
        ]
        | None
    ) = None
    """Devices of a group; they divide a node's devices or are whole nodes. If unset: all such sizes."""


class Planner(Part):
    """How the plan is searched, and within which limits."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.dataTypes) || self.dataTypes.all(t, t in ['FP32', 'FP16'])",
            message="dataTypes BF16 and INT8 have no training kernel on any device; hint: use FP32, FP16, or both",
            holds=lambda planner: all(
                any(each in kernels.weight_types for kernels in TRAINING_KERNELS.values())
                for each in planner.data_types or ()
            ),
        ),
    )

    algorithm: PlannerAlgorithm = PlannerAlgorithm.NEUROSHARD
    """NeuroShard searches with the cost models; the others are baselines that look at sizes only."""
    fallback_algorithm: FallbackAlgorithm = FallbackAlgorithm.NONE
    """What plans when the algorithm fails or runs out of time; None lets the job fail instead."""
    max_memory_per_device: Size | None = None
    """Most memory of a device that a plan may fill, as an integer of bytes or with a suffix such as 70Gi. If unset: all
    the device has, less 2.5 GiB, at most a sixteenth, for the CUDA context, libraries, and NCCL, and a share of what a
    step allocates and frees, for the gaps in torch's allocator. The dense part of NeuroShard's trainer is counted;
    with a trainer of your own, leave room for it."""
    sharding_types: (
        Annotated[tuple[TableSharding, ...], Field(min_length=1, max_length=6, json_schema_extra=ATOMIC)] | None
    ) = None
    """Ways in which tables may be sharded. If unset: all whose collectives the cost models know, which are all of a
    simulated bundle, and TableWise and ColumnWise of one that was measured; without DataParallel for a trainer of your
    own, which must give such tables an optimizer."""
    data_types: (
        Annotated[tuple[DataType, ...], Field(min_length=1, max_length=2, json_schema_extra=ATOMIC), Unique()] | None
    ) = None
    """Types in which the plan may store tables where they do not fit otherwise, or the step is faster: FP32, FP16, or
    both. Another type than a table's own changes results. A trainer of your own must build the tables in the plan's
    types. If unset: each table has its own."""
    host_memory_per_node: Size | None = None
    """Memory of each node in which tables may be stored where device memory does not suffice, such as 1Ti; it is less
    than the node has, by what processes and data loading need. If unset: tables are in device memory alone."""
    sharding_groups: ShardingGroups | None = None
    """Permits plans in which groups of devices each hold all tables (2-D sharding), where they are cheaper. Only SGD
    trains them as one model. If unset: tables are sharded over all devices."""


class PlanReference(Part):
    """A plan that was made before."""

    name: Name
    """ConfigMap that holds the plan."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "plan.json"
    """Key of the plan in its data, or gzipped in its binaryData under a key that ends in .gz."""

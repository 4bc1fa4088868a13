"""What a plan is asked for: tables, devices, training settings, constraints and the search's budget."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from neuroshard_api.documents.batch_choice import BatchChoices
from neuroshard_api.documents.communication import CommunicationChoices, WireTypes
from neuroshard_api.documents.counts import MAX_MEMORY_BYTES, Count, PositiveCount
from neuroshard_api.documents.dense_layout import DenseChoices, DenseMemory, DensePolicy
from neuroshard_api.documents.dense_profile import DenseMatrices, DenseProfile
from neuroshard_api.documents.document import Document, DocumentError, Value
from neuroshard_api.documents.gradient_exchange import GradientChoices, GradientExchange
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.servers import ServerPool, servers_problem
from neuroshard_api.documents.setting_names import in_names_of_job
from neuroshard_api.documents.tables import DataType, EmbeddingDim, Optimizer, Table, TableSet
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kernels import (
    TRAINING_KERNELS,
    DeviceKind,
    kernel_problem,
    trained_output,
    trained_weights,
    widest_shard,
)
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, placed_types
from neuroshard_api.sharding.replication import ReplicationChoices

DeviceIndex = Count
MAX_GLOBAL_BATCH_SIZE = 2**36
"""Most samples of a step: with any table, what it needs of memory then is a number of 64 bits."""


class Algorithm(StrEnum):
    """Ways to find a plan. All but the first are baselines."""

    NEUROSHARD = "neuroshard"
    RANDOM = "random"
    DIM_GREEDY = "dim_greedy"
    SIZE_GREEDY = "size_greedy"
    LOOKUP_GREEDY = "lookup_greedy"
    SIZE_LOOKUP_GREEDY = "size_lookup_greedy"
    TORCHREC = "torchrec"


class Pipeline(StrEnum):
    """How a trainer overlaps its steps; names as TorchRec's train pipelines."""

    NONE = "none"
    """One step after the other (TrainPipelineBase): kernels wait for the host to launch them."""
    SPARSE_DIST = "sparse-dist"
    """TrainPipelineSparseDist: the host runs ahead of the device, and ids travel while another batch computes."""


class ComputePeak(StrEnum):
    """Which compute of the devices a step waits for."""

    SEPARATE = "separate"
    """The slowest forward and the slowest backward: all devices meet between backward and the next forward too."""
    JOINT = "joint"
    """The slowest sum of both: the last all-reduce of the dense part is launched before the tables' backward ends."""


ShardingTypes = Annotated[tuple[ShardingType, ...], Field(min_length=1)]
ComputeKernels = Annotated[tuple[ComputeKernel, ...], Field(min_length=1)]
DataTypes = Annotated[tuple[Annotated[DataType, AfterValidator(trained_weights)], ...], Field(min_length=1)]


class TableConstraints(Value):
    """What holds for one table."""

    devices: Annotated[tuple[DeviceIndex, ...], Field(min_length=1)] | None = None
    """The only devices that may hold shards of the table (one device pins it). None: all that are allowed."""
    sharding_types: ShardingTypes | None = None
    """The only ways to cut the table. None: the constraint of all tables."""
    compute_kernels: ComputeKernels | None = None
    """The only kernels of the table. None: the constraint of all tables."""
    cache_load_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Rows of the table's cache over its own, where its kernel is fused_uvm_caching. None: the search chooses."""
    data_types: DataTypes | None = None
    """The only types that the table may be stored in; another one than its own changes results. None: the constraint of
    all tables."""
    max_shards: PositiveCount | None = None
    """Most pieces of the table by columns, also where all tables may have fewer. None: the constraint of all tables."""
    min_shard_width: EmbeddingDim | None = None
    """Fewest columns of a shard of the table, also where those of all tables have more. None: the constraint of all
    tables."""


class Constraints(Document):
    """What every plan must respect."""

    schema_name: ClassVar[str] = "constraints/v1"

    schema_version: Literal["constraints/v1"] = "constraints/v1"
    max_memory_bytes_per_device: Annotated[int, Field(ge=1, le=MAX_MEMORY_BYTES)] | None = None
    """Most memory that the ledger of a device may reach. None: the device's memory."""
    forbidden_devices: tuple[DeviceIndex, ...] = ()
    """Devices that hold no shard. Any excludes row_wise and data_parallel tables, which are on all devices."""
    sharding_types: ShardingTypes | None = None
    """The only ways to cut a table without types of its own, as TorchRec's ParameterConstraints. None: all that suit
    its pooling and optimizer, whose collectives the cost models know, and that are not in excluded_sharding_types."""
    excluded_sharding_types: ShardingTypes | None = None
    """Ways in which no table is cut whose types are not named. None: there are none."""
    compute_kernels: ComputeKernels | None = None
    """The only kernels of a table without kernels of its own. None: the one that runs its sharding type."""
    data_types: DataTypes | None = None
    """The only types that a table without types of its own may be stored in; the plan chooses. None: its own."""
    max_shards_per_table: PositiveCount | None = None
    """Most pieces by columns of a table that says nothing of its own. None: bound by min_shard_width alone."""
    min_shard_width: EmbeddingDim = 4
    """Fewest columns of a shard of a table that says nothing of its own."""
    max_shard_width: EmbeddingDim | None = None
    """Most columns of a shard. None: what the device's kernels take; on GPUs 2,048, and 1,024 for tables with pooling
    that may be cut, since FBGEMM before 1.7 returns zeros for wider ones."""
    colocate: tuple[Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()
    """Groups of table names; each group is placed whole on one device, in addition to the groups that tables name."""
    tables: dict[str, TableConstraints] = Field(default_factory=dict)
    """Constraints of single tables, by name."""

    def sharding_types_of(self, name: str) -> ShardingTypes | None:
        """Return the only ways to cut a table. None: all."""
        own = self.tables.get(name)
        return self.sharding_types if own is None or own.sharding_types is None else own.sharding_types

    def compute_kernels_of(self, name: str) -> ComputeKernels | None:
        """Return the only kernels of a table. None: all."""
        own = self.tables.get(name)
        return self.compute_kernels if own is None or own.compute_kernels is None else own.compute_kernels

    def data_types_of(self, name: str) -> DataTypes | None:
        """Return the only types that a table may be stored in. None: its own."""
        own = self.tables.get(name)
        return self.data_types if own is None or own.data_types is None else own.data_types

    @property
    def has_data_types(self) -> bool:
        """Whether the type of some table is a choice, or another one than its own."""
        return self.data_types is not None or any(own.data_types is not None for own in self.tables.values())


class MemorySettings(Value):
    """What device memory is needed for in addition to weights and optimizer state."""

    dense_bytes: Annotated[int, Field(ge=0, le=MAX_MEMORY_BYTES)] | None = None
    """Memory of the dense part on every device: weights, gradients, optimizer state, activations. It excludes a dense
    profile. None: the dense profile's, else 0."""
    reserve_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Share of the device's memory kept free. If unset: 2.5 GiB, at most a sixteenth, for the CUDA context, libraries,
    and NCCL, and a share of what a step allocates and frees, for the gaps in torch's allocator."""
    reserve_bytes: Annotated[int, Field(ge=0, le=MAX_MEMORY_BYTES)] = 0
    """Memory kept free besides."""
    expandable_segments: bool = True
    """Whether the segments of torch's allocator grow (PYTORCH_ALLOC_CONF=expandable_segments:True), as NeuroShard's
    trainer sets it. Gaps then are 18 % of what moves, otherwise 37 %."""
    managed_collision_bytes: Annotated[int, Field(ge=0, le=MAX_MEMORY_BYTES)] | None = None
    """Memory of managed collision on every device: maps of ids to rows, and histories of ids. None: there is none."""
    num_pipelined_batches: Annotated[int, Field(ge=1, le=8)] | None = None
    """Input batches on the device at once. None: 3 with the pipeline sparse-dist, which trains one, distributes the
    next and copies the one after it; 1 without a pipeline."""
    output_data_type: Annotated[DataType, AfterValidator(trained_output)] = DataType.FP32
    """Type of pooled embeddings and of their gradients in the kernels, in memory, and on the wire where no codec
    encodes them (see ``PlanRequest.wire``)."""


class SearchSettings(Value):
    """How hard to search."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Equal seeds give equal plans."""
    work_budget: PositiveCount | None = None
    """Most device evaluations by the cost networks. None: grows with the number of tables."""
    shard_tolerance: Annotated[float, Field(ge=0, le=1)] = 0.001
    """Share of the predicted cost that may be given up for fewer shards; 0: none. The default is about the error of the
    cost models' differences between plans of one search."""

    @model_validator(mode="before")
    @classmethod
    def _without_fixed_numbers(cls, data: object) -> object:
        """Leave out what plans of earlier builds name, and what the search has by itself, at these values."""
        fixed = {"beam_width": 3, "max_levels": 10}
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if key not in fixed or value != fixed[key]}


class PlanRequest(Document):
    """All that decides a plan, but for the bundle of cost models."""

    schema_name: ClassVar[str] = "plan-request/v1"

    schema_version: Literal["plan-request/v1"] = "plan-request/v1"
    tables: TableSet
    topology: Topology
    batch_size_per_device: Annotated[int, Field(ge=1, le=2**24)] = 8192
    """Samples per device and step; an embedding shard serves the batches of all devices."""
    batch_choices: BatchChoices | None = None
    """Samples per device among which the plan chooses; the plan's request has what it chose. If unset:
    batch_size_per_device."""
    optimizer: Optimizer = Optimizer.ROWWISE_ADAGRAD
    """Of the tables that name none."""
    pipeline: Pipeline = Pipeline.SPARSE_DIST
    """How the trainer overlaps its steps; decides whether the exchange of indices is exposed, and whether the host's
    launch of a kernel counts."""
    compute_peak: ComputePeak = ComputePeak.SEPARATE
    """Which compute of the devices a step waits for."""
    memory: MemorySettings = MemorySettings.model_construct()
    deduplicate: tuple[str, ...] | None = None
    """Duplication groups of tables whose repeated lists may be left out of batches. If unset: none. Empty: none, and
    the job's trainer could leave none out."""
    grouped: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Groups of ``deduplicate`` in the grouped form, whose tables have a collection of their own. If unset: none; the
    planner tries it where the other form pays."""
    joint_product_columns: Annotated[int, Field(ge=1)] | None = None
    """Columns of the trainer's first product with all features side by side, of which it computes the part of a group
    in the grouped form once per distinct list. If unset: it has no such product."""
    replication: ReplicationChoices | None = None
    """Groups of devices that may each hold all tables (2-D sharding). If unset: none."""
    communication: CommunicationChoices | None = None
    """Types in which pooled embeddings and their gradients may travel. If unset: as ``wire`` says."""
    wire: WireTypes | None = None
    """Types in which they travel, by codecs. If unset: memory.output_data_type in both directions."""
    gradient_choices: GradientChoices | None = None
    """How gradients of the replicated dense part may travel. If unset: as ``gradients`` says."""
    gradients: GradientExchange | None = None
    """How they travel. If unset: as they are."""
    dense: DenseProfile | None = None
    """The dense part, counted. None: memory.dense_bytes alone says what it needs."""
    dense_matrices: DenseMatrices | None = None
    """Weight matrices of a dense part that was not counted. If unset: they are not known, or it was counted."""
    dense_choices: DenseChoices | None = None
    """How the counted dense part may be kept on the devices. If unset: as with the policy auto."""
    dense_memory: DenseMemory | None = None
    """Memory of the counted dense part in a layout that was chosen before. If unset: it is replicated, and nothing is
    checkpointed."""
    servers: ServerPool | None = None
    """Embedding servers, and the tables that are on them. If unset: there are none."""
    remarks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Sentences about the job, which the planner does not see; the plan has them among its warnings. If unset: none."""
    refused_levers: Annotated[tuple[LeverName, ...], Field(min_length=1)] | None = None
    """What the job or the module that the request was made of does not take, so that no plan names it as what would
    help. If unset: nothing is known of such."""
    settings_of: Literal["job"] | None = None
    """Whose fields messages name: those of the job, or of ``--set``, that the request was made of. If unset: this
    document's own."""
    constraints: Constraints = Constraints.model_construct()
    search: SearchSettings = SearchSettings.model_construct()
    algorithm: Algorithm = Algorithm.NEUROSHARD

    @model_validator(mode="after")
    def _countable_batch(self) -> Self:
        if self.global_batch_size > MAX_GLOBAL_BATCH_SIZE:
            problem = (
                f"batch_size_per_device: {self.batch_size_per_device:,} samples on each of "
                f"{self.topology.num_devices:,} devices are more than {MAX_GLOBAL_BATCH_SIZE:,} in a step"
                f"; hint: lower it"
            )
            raise ValueError(self.in_its_names(problem))
        return self

    @model_validator(mode="after")
    def _known_groups(self) -> Self:
        known = self.tables.duplication_groups
        for index, name in enumerate(self.deduplicate or ()):
            if name not in known:
                raise ValueError(
                    f"deduplicate[{index}]: no table has the duplication_group {name!r}; "
                    f"the tables have {', '.join(known) or 'none'}"
                )
        for index, name in enumerate(self.grouped or ()):
            if name not in (self.deduplicate or ()):
                raise ValueError(f"grouped[{index}]: {name!r} is not in deduplicate; hint: add it there")
        return self

    @model_validator(mode="after")
    def _encodable(self) -> Self:
        if self.wire is None and self.communication is None:
            return self
        field = "communication" if self.wire is None else "wire"
        found = self.memory.output_data_type
        if found is not DataType.FP32:
            raise ValueError(
                f"{field}: codecs encode FP32, and memory.output_data_type is {found.value}; hint: give one of them"
            )
        problem = None if self.wire is None else self.wire_problem(self.wire)
        if problem is not None:
            raise ValueError(self.in_its_names(f"wire.{problem}"))
        return self

    def in_its_names(self, message: str) -> str:
        """Return a message about the request with the names of the settings as the user knows them."""
        return message if self.settings_of is None else in_names_of_job(message)

    @model_validator(mode="after")
    def _has_kernels(self) -> Self:
        kind, asked = self.topology.device.kind, self.constraints.max_shard_width
        most = TRAINING_KERNELS[kind].max_width
        if asked is not None and most is not None and asked > most:
            too_wide = (
                f"constraints.max_shard_width: is {asked:,}, and FBGEMM's CUDA kernels take shards of at most "
                f"{most:,} columns; hint: lower it, or leave it out"
            )
            raise ValueError(self.in_its_names(too_wide))
        problem = self.kernel_problem(kind)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _served(self) -> Self:
        problem = servers_problem(self)
        if problem is not None:
            raise ValueError(self.in_its_names(problem))
        return self

    @model_validator(mode="after")
    def _dense_part_is_counted(self) -> Self:
        choices = self.dense_choices
        if choices is not None and choices.policy is DensePolicy.SHARD and self.memory.dense_bytes is not None:
            problem = (
                "dense_choices.policy: shard needs the units of a counted dense part, and memory.dense_bytes takes its "
                "place; hint: leave one of them out"
            )
            raise ValueError(self.in_its_names(problem))
        if self.dense_matrices is not None and self.dense is not None:
            raise ValueError(
                "dense_matrices: are of a dense part that was not counted, and dense counts it; hint: leave one out"
            )
        if self.dense_memory is not None and self.dense is None:
            raise ValueError(
                "dense_memory: is of a counted dense part, and there is none; hint: give dense, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _dense_part_of_this_model(self) -> Self:
        problems = [] if self.dense is None else self._problems_of(self.dense)
        if problems:
            raise ValueError(f"dense: {problems[0]}")
        return self

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Samples per device of which one is planned, in ascending order."""
        return (self.batch_size_per_device,) if self.batch_choices is None else self.batch_choices.sizes

    def with_batch(self, samples_per_device: int, dense: DenseProfile | None = None) -> Self:
        """Return the request for a number of samples per device in place of a choice, with the dense part counted."""
        changed = {"batch_size_per_device": samples_per_device, "batch_choices": None, "dense": dense}
        return self.model_copy(update=changed)

    def with_dense_of(self, profiles: Sequence[DenseProfile], *, where: str) -> Self:
        """Return the request with the dense part as it was counted for its batch size, or for all that it may have.

        Raises DocumentError, which names the profiles' file.
        """
        counted = {each.batch_size_per_device: each for each in profiles}
        if self.batch_choices is None:
            return self.with_dense(counted.get(self.batch_size_per_device, profiles[0]), where=where)
        for size in self.batch_choices.sizes:
            self.with_batch(size).with_dense(counted.get(size, profiles[0]), where=where)
        choices = BatchChoices(
            sizes=self.batch_choices.sizes, dense=tuple(counted[size] for size in self.batch_choices.sizes)
        )
        return self.model_copy(update={"batch_choices": choices})

    def with_dense(self, profile: DenseProfile, *, where: str) -> Self:
        """Return the request with a counted dense part. Raises DocumentError, which names the profile's file."""
        problems = self._problems_of(profile)
        if problems:
            raise DocumentError(where, problems)
        return self.model_copy(update={"dense": profile})

    def _problems_of(self, profile: DenseProfile) -> list[str]:
        if self.memory.dense_bytes is not None:
            problem = "excludes memory.dense_bytes, which takes the place of the count; hint: give one of them"
            return [self.in_its_names(problem)]
        return profile.mismatches(batch_size_per_device=self.batch_size_per_device, tables=self.tables.tables)

    @property
    def dense_bytes(self) -> int:
        """Memory of the dense part on every device."""
        if self.dense_memory is not None:
            return self.dense_memory.total_bytes
        return (self.memory.dense_bytes or 0) if self.dense is None else self.dense.total_bytes

    @property
    def carried_gradient_bytes(self) -> int:
        """Memory for what is left over of the counted dense part's gradients, and for a copy of them while it is made.

        An upper bound where units are sharded, which carry nothing.
        """
        if self.gradients is None or not self.gradients.type.carries or self.dense is None:
            return 0
        return 2 * self.dense.gradient_bytes

    def placed_types_of(self, name: str) -> tuple[ShardingType, ...] | None:
        """Return the only types of a table as they come out on the request's devices. None: all."""
        asked = self.constraints.sharding_types_of(name)
        return None if asked is None else placed_types(asked, self.topology)

    def wire_problem(self, types: WireTypes) -> str | None:
        """Return the reason that types cannot be trained on the request's devices, field first. None: they can be."""
        return types.problem(batch_size_per_device=self.batch_size_per_device, on_cpu=self.topology.device.is_cpu)

    def widest_shard(self, table: Table) -> int | None:
        """Return the most columns of a table's shards where they can be chosen. None: any number."""
        asked = self.constraints.max_shard_width
        return asked or widest_shard(self.topology.device.kind, has_pooling=not table.is_sequence)

    def optimizer_of(self, table: Table) -> Optimizer:
        """Return the optimizer of a table."""
        return table.optimizer or self.optimizer

    def kernel_problem(self, kind: DeviceKind) -> str | None:
        """Return the first table or type that devices of a kind cannot train. None: they can train all."""
        weight_types: dict[Optimizer, dict[str, DataType]] = {}
        for table in self.tables.tables:
            weight_types.setdefault(self.optimizer_of(table), {})[table.name] = table.data_type
        found = (
            kernel_problem(kind, weight_types=types, output_type=self.memory.output_data_type, optimizer=optimizer)
            for optimizer, types in weight_types.items()
        )
        return next(filter(None, found), None)

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """Optimizers of the tables, each once, in the tables' order."""
        return tuple(dict.fromkeys(map(self.optimizer_of, self.tables.tables)))

    @property
    def dense_working_bytes(self) -> int:
        """Memory of the counted dense part that is allocated during a step only."""
        if self.dense_memory is not None:
            return self.dense_memory.working_bytes
        return 0 if self.dense is None else self.dense.working_bytes

    @property
    def num_batches_in_flight(self) -> int:
        """Input batches on the device at once."""
        of_pipeline = {Pipeline.NONE: 1, Pipeline.SPARSE_DIST: 3}[self.pipeline]
        return self.memory.num_pipelined_batches or of_pipeline

    @property
    def looks_ahead(self) -> bool:
        """Whether rows on embedding servers are looked up a step early."""
        return self.servers is not None and self.servers.lookahead is not None

    @property
    def global_batch_size(self) -> int:
        """Samples of one step over all devices."""
        return self.batch_size_per_device * self.topology.num_devices

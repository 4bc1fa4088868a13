"""A TorchRec sharding plan as a JSON document that needs no torchrec to write or to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.bundle import Source
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType, WireTypes
from neuroshard_api.documents.counts import Count, PositiveCount
from neuroshard_api.documents.document import Document, DocumentError, Value
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, Shard, TablePlacement
from neuroshard_api.documents.request import Constraints, ShardingTypes
from neuroshard_api.documents.tables import DataType, Table
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, kernels_of, row_blocks
from neuroshard_api.sharding.placement_rules import (
    Devices,
    Problem,
    as_asked,
    cache_problem,
    placement_problems,
    shard_problem,
)
from neuroshard_api.sharding.replication import GroupLayout, SyncSteps

DEFAULT_MODULE_PATH = "model.sparse_arch.embedding_bag_collection"
"""Where TorchRec's DLRMTrain, the usual argument of DistributedModelParallel, keeps its tables."""

ComputeDevice = Literal["cuda", "cpu"]


class TorchRecShard(Value):
    """The fields of torch's ShardMetadata."""

    shard_offsets: tuple[Count, Count]
    """First row and first column."""
    shard_sizes: tuple[Count, PositiveCount]
    """Rows and columns; the last blocks of rows of a small table may have no row."""
    placement: Annotated[str, Field(pattern=r"^rank:\d+/(cpu|cuda:\d+)$")]
    """Global rank, then the device as the process of that rank sees it: ``rank:9/cuda:1`` on nodes of 8."""


class TorchRecParameter(Value):
    """The fields of TorchRec's ParameterSharding for one table."""

    sharding_type: ShardingType
    compute_kernel: ComputeKernel = ComputeKernel.FUSED
    """TorchRec's own default is dense."""
    cache_load_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Becomes the load factor of CacheParams; of a fused_uvm_caching table."""
    ranks: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Global rank of each shard, or its number in a group, in the order of ``shards``; a rank may occur more than once.
    All ranks where the table is data_parallel."""
    output_dtype: DataType | None = None
    """Type of the pooled embeddings. None: the module's, FP32."""
    data_type: DataType | None = None
    """Type that the plan chose for the table. ParameterSharding has no such field: data_type of the module's
    EmbeddingBagConfig must be it. If unset: the plan chose none."""
    shards: tuple[TorchRecShard, ...] = ()
    """By ascending column, then row; becomes an EnumerableShardingSpec. Empty where the table is data_parallel, which
    has no sharding_spec."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        is_replicated = self.sharding_type is ShardingType.DATA_PARALLEL
        if self.compute_kernel not in kernels_of(self.sharding_type):
            raise ValueError(
                f"compute_kernel: is {self.compute_kernel}, a {self.sharding_type} table runs with "
                f"{' or '.join(kernels_of(self.sharding_type))}"
            )
        problem = cache_problem(self.compute_kernel, self.cache_load_factor)
        if problem is not None:
            raise ValueError(f"cache_load_factor: {problem}")
        if is_replicated == bool(self.shards):
            found = "must be left out of" if is_replicated else "are missing in"
            raise ValueError(f"shards: {found} a {self.sharding_type} table")
        return self


class TorchRecGroups(Value):
    """The arguments of TorchRec's DMPCollection, which holds all tables in each group of ranks."""

    sharding_group_size: PositiveCount
    """Ranks of a group; they are numbered from 0 in ``modules``, and DMPCollection gives them their global ranks."""
    node_group_size: PositiveCount
    """Ranks of a group on one node."""
    use_inter_host_allreduce: bool
    """Whether a group has consecutive ranks; else its ranks are as far apart as there are groups."""
    sync_every_steps: SyncSteps
    """Steps between calls of ``sync()``."""


class TorchRecCodecs(WireTypes):
    """Arguments for TorchRec's QCommsConfig, whose registry is for POOLED_EMBEDDINGS_ALL_TO_ALL alone."""

    fp8_quantize_dim: PositiveCount | None = None
    """Values with a common scale, in both directions. If unset: neither is FP8."""


class TorchRecPlan(Document):
    """All tables of one module, by the module's path and the tables' names."""

    schema_name: ClassVar[str] = "torchrec-sharding-plan/v2"
    earlier_versions: ClassVar[tuple[str, ...]] = ("torchrec-sharding-plan/v1",)

    schema_version: Literal["torchrec-sharding-plan/v2"] = "torchrec-sharding-plan/v2"
    source: Source | None = None
    """Where the costs that the plan was chosen by come from. If unset: the plan has no price."""
    predicted_ms: Annotated[float, Field(ge=0)] | None = None
    """Embedding part of one step under those costs."""
    world_size: PositiveCount
    """Processes to start, one per device."""
    local_world_size: PositiveCount
    """Processes per node, as LOCAL_WORLD_SIZE must say."""
    pod_size: PositiveCount | None = None
    """Nodes of a domain, which a link as fast as that inside a node joins, as TORCHREC_RESOLVED_POD_SIZE must say. If
    unset: 1."""
    groups: TorchRecGroups | None = None
    """Groups of ranks that each hold all tables. If unset: none, for DistributedModelParallel."""
    codecs: TorchRecCodecs | None = None
    """Types of pooled embeddings on the wire. If unset: they travel as they are."""
    deduplication: Annotated[tuple[DeduplicatedGroup, ...], Field(min_length=1)] | None = None
    """Groups whose repeats the batches must leave out, in their form, to cost what was predicted. Shards depend on no
    form: all lists train under them too. If unset: every list is sent and looked up."""
    modules: Annotated[dict[str, dict[str, TorchRecParameter]], Field(min_length=1)]

    @model_validator(mode="after")
    def _runnable(self) -> Self:
        if self.world_size % self.local_world_size:
            raise ValueError(f"local_world_size: {self.local_world_size} does not divide {self.world_size} processes")
        size, per_domain = self.world_size, self.local_world_size * (self.pod_size or 1)
        if size % per_domain:
            raise ValueError(f"pod_size: domains of {per_domain} processes do not divide {size} processes")
        if self.groups is not None:
            size, per_domain = self.groups.sharding_group_size, self.groups.node_group_size
            if self.world_size % size or size % per_domain:
                raise ValueError(
                    f"groups: nodes of {per_domain} ranks in groups of {size} do not divide {self.world_size} processes"
                )
        for path, tables in self.modules.items():
            kinds = {parameter.sharding_type for parameter in tables.values()}
            if {ShardingType.TABLE_ROW_WISE, ShardingType.GRID} <= kinds:
                raise ValueError(
                    f"modules.{path}: has table_row_wise and grid_shard tables; hint: write all as grid_shard"
                )
            for name, parameter in tables.items():
                problem = _problem(name, parameter, size, per_domain)
                if problem is not None:
                    raise ValueError(f"modules.{path}.{name}{problem[0]}: {problem[1]}")
        return self

    @classmethod
    def of(
        cls,
        plan: GivenPlan,
        *,
        module_path: str | None = None,
        collections: Mapping[str, Mapping[str, str]] | None = None,
        compute_device: ComputeDevice = "cuda",
    ) -> Self:
        """Return a plan in TorchRec's words; device ``d`` becomes rank ``d``.

        TorchRec makes one lookup kernel and one pair of collectives for each sharding type of a collection. So where
        any of its tables is cut by columns, the whole ones are called column_wise too, with one shard, but for those
        whose constraints do not permit it; and where any is grid_shard, the table_row_wise ones too, with one block.

        Args:
            plan: a plan that matches its request.
            module_path: of the collection of all tables within the module given to DistributedModelParallel; an empty
                string if the collection itself is given. If unset: each table is in the collection that it names, or
                else at DEFAULT_MODULE_PATH.
            collections: in place of module_path: the plan's name of each table by its name in the collection, by the
                collection's path.
            compute_device: ``cpu`` for processes that run gloo on the host.

        Raises:
            DocumentError: TorchRec cannot run the plan, or would compute wrong values, or two tables of a collection
                have one name.
        """
        if plan.servers is not None:
            problem = "servers: TorchRec's planner has no embedding servers; hint: export a plan without them"
            raise DocumentError("plan", [problem])
        request = plan.resolved
        problems = list(placement_problems(plan.tables, request))
        if problems:
            raise DocumentError("plan", problems)
        output = request.memory.output_data_type
        placements = {table.name: as_asked(table, request) for table in plan.tables}
        num_rows = {table.name: table.num_embeddings for table in request.tables.tables}
        modules: dict[str, dict[str, TorchRecParameter]] = {}
        for path, names in (collections or _collections(request.tables.tables, module_path)).items():
            types = _joined_types([placements[known_as] for known_as in names.values()], request.constraints)
            modules[path] = {
                name: _parameter(
                    placements[known_as],
                    sharding_type=types[known_as],
                    num_rows=num_rows[known_as],
                    topology=request.topology,
                    compute_device=compute_device,
                    output_dtype=None if output is DataType.FP32 else output,
                )
                for name, known_as in names.items()
            }
        return cls(
            source=None if plan.predicted is None else plan.predicted.source,
            predicted_ms=None if plan.predicted is None else plan.predicted.total_ms,
            world_size=plan.num_devices,
            local_world_size=plan.devices_per_node,
            pod_size=pods if (pods := plan.request.topology.nodes_per_domain) > 1 else None,
            groups=_groups(plan),
            codecs=_codecs(request.wire),
            deduplication=plan.deduplication,
            modules=modules,
        )


def _collections(tables: Sequence[Table], module_path: str | None) -> Mapping[str, Mapping[str, str]]:
    """Return the plan's name of each table by its name in the collection, by the collection's path.

    Raises:
        DocumentError: two tables of a collection have one name.
    """
    if module_path is not None:
        return {module_path: {table.name: table.name for table in tables}}
    found: dict[str, dict[str, str]] = {}
    for table in tables:
        path = DEFAULT_MODULE_PATH if table.collection is None else table.collection
        members = found.setdefault(path, {})
        other = members.setdefault(table.name_in_collection, table.name)
        if other != table.name:
            raise DocumentError(
                "plan",
                [
                    (
                        f"tables: {other!r} and {table.name!r} are both {table.name_in_collection!r} in {path}"
                        f"; hint: rename one"
                    )
                ],
            )
    return found


def _groups(plan: GivenPlan) -> TorchRecGroups | None:
    if plan.replication is None:
        return None
    group = plan.resolved.topology
    return TorchRecGroups(
        sharding_group_size=group.num_devices,
        node_group_size=group.devices_per_domain,
        use_inter_host_allreduce=plan.replication.layout is GroupLayout.CONTIGUOUS,
        sync_every_steps=plan.replication.sync_every_steps,
    )


def _codecs(types: WireTypes | None) -> TorchRecCodecs | None:
    if types is None or types.is_exact:
        return None
    has_fp8 = WireType.FP8 in {types.forward, types.backward}
    return TorchRecCodecs(
        forward=types.forward,
        backward=types.backward,
        fp8_quantize_dim=WIRE_FORMATS[WireType.FP8].group_values if has_fp8 else None,
    )


def _joined_types(tables: Sequence[TablePlacement], constraints: Constraints) -> Mapping[str, ShardingType]:
    """Return the types that the tables of a collection are written as, by name."""
    own = {each.name: each.sharding_type for each in tables}
    pairs = ((ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE), (ShardingType.TABLE_ROW_WISE, ShardingType.GRID))
    found = set(own.values())
    joined = {one: other for one, other in pairs if other in found}
    return {
        name: _permitted(joined.get(kind, kind), kind, constraints.sharding_types_of(name))
        for name, kind in own.items()
    }


def _permitted(joined: ShardingType, own: ShardingType, asked: ShardingTypes | None) -> ShardingType:
    """Return a table's joined type, or its own where only that was asked for and TorchRec runs both."""
    is_refused = joined is ShardingType.COLUMN_WISE and asked is not None and joined not in asked
    return own if is_refused else joined


def _parameter(
    table: TablePlacement,
    *,
    sharding_type: ShardingType,
    num_rows: int,
    topology: Topology,
    compute_device: ComputeDevice,
    output_dtype: DataType | None,
) -> TorchRecParameter:
    shards = _torchrec_shards(table, num_rows, topology)

    def placement(device: int) -> str:
        own = f"cuda:{device % topology.devices_per_node}" if compute_device == "cuda" else "cpu"
        return f"rank:{device}/{own}"

    return TorchRecParameter(
        sharding_type=sharding_type,
        compute_kernel=table.compute_kernel,
        cache_load_factor=table.cache_load_factor,
        data_type=table.data_type,
        ranks=tuple(device for device, _, _ in shards),
        output_dtype=output_dtype,
        shards=tuple(
            TorchRecShard(shard_offsets=offsets, shard_sizes=sizes, placement=placement(device))
            for device, offsets, sizes in shards
            if sharding_type is not ShardingType.DATA_PARALLEL
        ),
    )


def _torchrec_shards(
    table: TablePlacement, num_rows: int, devices: Devices
) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Return device, offsets, and sizes of the shards as TorchRec wants them: also blocks that have no row."""
    kind = table.sharding_type
    if kind.is_by_columns or kind is ShardingType.DATA_PARALLEL:
        return [
            (shard.device, (shard.row_offset, shard.column_offset), (shard.num_rows, shard.num_columns))
            for shard in sorted(table.shards, key=lambda shard: (shard.column_offset, shard.device))
        ]
    size = devices.devices_per_domain if kind.is_by_node else devices.num_devices
    firsts = {shard.column_offset: shard for shard in table.shards}
    return [
        (firsts[column].device // size * size + part, (row, column), (rows, firsts[column].num_columns))
        for column in sorted(firsts)
        for part, (row, rows) in enumerate(row_blocks(num_rows, size))
    ]


@dataclass(frozen=True, slots=True)
class _World:
    num_devices: int
    devices_per_domain: int


def _problem(name: str, parameter: TorchRecParameter, world_size: int, domain_size: int) -> Problem | None:
    """Return the problem of a table that TorchRec cannot run, or would compute wrong values of. None: there is none."""
    kind = parameter.sharding_type
    if kind is ShardingType.DATA_PARALLEL:
        everyone = sorted(parameter.ranks) == list(range(world_size))
        return None if everyone else (".ranks", "data_parallel means all ranks, each once")
    if len(parameter.ranks) != len(parameter.shards):
        return ".ranks", f"has {len(parameter.ranks)} entries, there are {len(parameter.shards)} shards"
    found = [
        (rank, each.shard_offsets, each.shard_sizes)
        for rank, each in zip(parameter.ranks, parameter.shards, strict=True)
    ]
    rows, columns = (max(offsets[axis] + sizes[axis] for _, offsets, sizes in found) for axis in (0, 1))
    shards = tuple(
        Shard(device=rank, row_offset=row, num_rows=height, column_offset=column, num_columns=width)
        for rank, (row, column), (height, width) in found
        if height
    )
    if not shards:
        return ".shards", "have no row; hint: give the blocks that have any"
    whole = len(shards) == 1 and kind is ShardingType.COLUMN_WISE
    placement = TablePlacement(name=name, sharding_type=ShardingType.TABLE_WISE if whole else kind, shards=shards)
    devices = _World(world_size, domain_size)
    on: ComputeDevice = "cpu" if parameter.shards[0].placement.endswith("/cpu") else "cuda"
    problem = shard_problem(placement, rows=rows, columns=columns, devices=devices, kind=on)
    if problem is not None:
        return problem
    placed = [each.placement.partition("/")[0] for each in parameter.shards]
    if found != _torchrec_shards(placement, rows, devices) or placed != [f"rank:{rank}" for rank in parameter.ranks]:
        return ".shards", "must be placed on ranks, in the order of columns, then ranks, blocks without rows included"
    return None

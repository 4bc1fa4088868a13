"""A TorchRec sharding plan as a JSON document that needs no torchrec to write or to read."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from neuroshard_api.bundle import Source
from neuroshard_api.counts import Count, PositiveCount
from neuroshard_api.document import Document, DocumentError, Value
from neuroshard_api.plan import Plan, Shard, ShardingType, TablePlacement
from neuroshard_api.tables import DataType

DEFAULT_MODULE_PATH = "model.sparse_arch.embedding_bag_collection"
"""Where TorchRec's DLRMTrain, the usual argument of DistributedModelParallel, keeps its tables."""

ComputeDevice = Literal["cuda", "cpu"]


class TorchRecShard(Value):
    """The fields of torch's ShardMetadata."""

    shard_offsets: tuple[Count, Count]
    """First row and first column."""
    shard_sizes: tuple[PositiveCount, PositiveCount]
    """Rows and columns."""
    placement: Annotated[str, Field(pattern=r"^rank:\d+/(cpu|cuda:\d+)$")]
    """Global rank, then the device as the process of that rank sees it: ``rank:9/cuda:1`` on nodes of 8."""


class TorchRecParameter(Value):
    """The fields of TorchRec's ParameterSharding for one table."""

    sharding_type: ShardingType
    compute_kernel: Literal["fused"] = "fused"
    """Lookup, gradient and optimizer in one kernel, weights in device memory; the costs are predicted for it."""
    ranks: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Global rank of each shard, in the order of ``shards``; a rank may stand more than once."""
    output_dtype: DataType | None = None
    """Type of the pooled embeddings. None: the module's, FP32."""
    shards: Annotated[tuple[TorchRecShard, ...], Field(min_length=1)]
    """By ascending column; becomes an EnumerableShardingSpec."""


class TorchRecPlan(Document):
    """All tables of one module, by the module's path and the tables' names."""

    schema_name: ClassVar[str] = "torchrec-sharding-plan/v1"

    schema_version: Literal["torchrec-sharding-plan/v1"] = "torchrec-sharding-plan/v1"
    source: Source
    """Where the costs that the plan was chosen by come from."""
    predicted_ms: Annotated[float, Field(ge=0)]
    """Embedding part of one step under those costs."""
    world_size: PositiveCount
    """Processes to start, one per device."""
    local_world_size: PositiveCount
    """Processes per node."""
    modules: Annotated[dict[str, dict[str, TorchRecParameter]], Field(min_length=1)]

    @classmethod
    def of(cls, plan: Plan, *, module_path: str = DEFAULT_MODULE_PATH, compute_device: ComputeDevice = "cuda") -> Self:
        """Return a plan in TorchRec's words; device ``d`` becomes rank ``d``.

        TorchRec makes one lookup kernel and one all-to-all for each sharding type, and the costs are predicted for one
        of each. So where any table is cut, the whole ones are called column-wise too, with one shard.

        Args:
            plan: a plan that matches its request; nothing of that is checked here.
            module_path: of the EmbeddingBagCollection within the module given to DistributedModelParallel; an empty
                string if the collection itself is given.
            compute_device: ``cpu`` for processes that run gloo on the host.

        Raises:
            DocumentError: a table is sharded in another way than by columns.
        """
        topology = plan.request.topology
        output = plan.request.memory.output_data_type
        for index, table in enumerate(plan.tables):
            if table.sharding_type not in _BY_COLUMNS:
                found = f"is {table.sharding_type.value}, only {' and '.join(_BY_COLUMNS)} can be run"
                raise DocumentError("plan", [f"tables[{index}].sharding_type: {found} ({table.name!r}); plan it again"])
        any_cut = any(len(table.shards) > 1 for table in plan.tables)
        return cls(
            source=plan.bundle.source,
            predicted_ms=plan.predicted.total_ms,
            world_size=topology.num_devices,
            local_world_size=topology.devices_per_node,
            modules={
                module_path: {
                    table.name: _parameter(
                        table,
                        sharding_type=ShardingType.COLUMN_WISE if any_cut else ShardingType.TABLE_WISE,
                        local_world_size=topology.devices_per_node,
                        compute_device=compute_device,
                        output_dtype=None if output is DataType.FP32 else output,
                    )
                    for table in plan.tables
                }
            },
        )


_BY_COLUMNS = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)


def _parameter(
    table: TablePlacement,
    *,
    sharding_type: ShardingType,
    local_world_size: int,
    compute_device: ComputeDevice,
    output_dtype: DataType | None,
) -> TorchRecParameter:
    shards = sorted(table.shards, key=lambda shard: shard.column_offset)

    def placement(shard: Shard) -> str:
        device = f"cuda:{shard.device % local_world_size}" if compute_device == "cuda" else "cpu"
        return f"rank:{shard.device}/{device}"

    return TorchRecParameter(
        sharding_type=sharding_type,
        ranks=tuple(shard.device for shard in shards),
        output_dtype=output_dtype,
        shards=tuple(
            TorchRecShard(
                shard_offsets=(shard.row_offset, shard.column_offset),
                shard_sizes=(shard.num_rows, shard.num_columns),
                placement=placement(shard),
            )
            for shard in shards
        ),
    )

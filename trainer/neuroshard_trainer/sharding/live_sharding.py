"""The proof that the sharding in memory is the plan's: read from the live tensors of every rank, not from the plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.dense_layout import PlannedUnit
from neuroshard_api.documents.document import Document
from neuroshard_api.documents.gradient_exchange import GradientExchange
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import Shard
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.kinds import ComputeKernel
from neuroshard_api.sharding.placement_rules import as_asked
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.batched_embedding_kernel import (
    BatchedDenseEmbedding,
    BatchedDenseEmbeddingBag,
    BatchedFusedEmbedding,
    BatchedFusedEmbeddingBag,
)
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import get_unwrapped_module
from torchrec.distributed.types import ShardingEnv2D
from torchrec.modules.embedding_configs import dtype_to_data_type

from neuroshard_trainer.ranks.agreement import agreed

Sharding = Mapping[str, tuple[Shard, ...]]
"""The shards of each table, by columns, rows, and ranks; a shard's device is its rank."""

_PLACES = {
    EmbeddingLocation.DEVICE: ComputeKernel.FUSED,
    EmbeddingLocation.MANAGED: ComputeKernel.FUSED_UVM,
    EmbeddingLocation.MANAGED_CACHING: ComputeKernel.FUSED_UVM_CACHING,
}
"""Kernels by the place of a table's weights."""

Collections = Mapping[str, Mapping[str, str]]
"""Tables' names in the plan by their names in the collection, by the collection's path in the model."""
ShardedCollection: TypeAlias = Any
"""A sharded collection of bags or sequences; TorchRec has no types."""
_COLLECTIONS = (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection)

_KERNELS = {
    BatchedFusedEmbeddingBag: ComputeKernel.FUSED,
    BatchedFusedEmbedding: ComputeKernel.FUSED,
    BatchedDenseEmbeddingBag: ComputeKernel.DENSE,
    BatchedDenseEmbedding: ComputeKernel.DENSE,
}


class LiveSharding(Document):
    """``live-sharding.json`` of a run directory: what the ranks found in their memory when training began."""

    schema_name: ClassVar[str] = "live-sharding/v1"

    schema_version: Literal["live-sharding/v1"] = "live-sharding/v1"
    plan_sha256: str
    """Hash of the plan file that it was held against."""
    tables: dict[str, tuple[Shard, ...]]
    wire: WireTypes | None = None
    """Types that the live codecs write. If unset: there are none."""
    gradients: GradientExchange | None = None
    """How the live hook exchanges gradients of the replicated dense part. If unset: they travel as they are."""
    dense: tuple[PlannedUnit, ...] | None = None
    """How each unit of the dense part is kept. If unset: all of it is replicated."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What one rank holds of one table, or how it computes it."""

    table: str
    shard: Shard | None
    """None: no row."""
    kernel: ComputeKernel | None
    """None: the rank holds nothing that it looks up."""
    data_type: str
    pooling: str


def planned_sharding(plan: GivenPlan) -> Sharding:
    """Return the plan's place of each table."""
    return {table.name: _in_order(table.shards) for table in plan.tables}


def prove_sharding(
    model: nn.Module,
    plan: GivenPlan,
    group: dist.ProcessGroup | None = None,
    *,
    collections: Collections | None = None,
) -> Sharding:
    """Return the live sharding if it is exactly the plan's. All ranks must call this, and all get the same answer.

    Args:
        model: wrapped in DistributedModelParallel.
        plan: what it was sharded by.
        group: of all ranks, for CPU tensors; None is the default group.
        collections: the plan's tables in each collection of the model. None: all are bags, and named as in the plan.

    Raises:
        InputError: a table is elsewhere, or is computed otherwise; the message names it. Or a path has no sharded
            collection.
    """
    held = _held_by_all(model, group, collections)
    for members in plan.groups:
        found = _sharding(held, members)
        _require_planned(planned_sharding(plan), found, members if plan.replication is not None else None)
    served = plan.of_servers
    if served is not None:
        ranks = range(plan.num_devices, plan.num_devices + served.num_devices)
        far = _sharding(held, ranks)
        _require_planned(planned_sharding(served), far, ranks)
        found = {**found, **{name: _later(shards, plan.num_devices) for name, shards in far.items()}}
    by_columns = all(placement.sharding_type.is_by_columns for placement in plan.tables)
    placed = list(zip(plan.tables, plan.resolved.tables.tables, strict=True))
    placed += [] if served is None else zip(served.tables, served.resolved.tables.tables, strict=True)
    for placement, table in placed:
        for each in held:
            is_free = table.pooling is None and by_columns  # such shards compute any pooling alike
            pooling = each.pooling if is_free else (table.pooling or Pooling.SUM).value
            kernel = as_asked(placement, plan.resolved).compute_kernel
            planned = (kernel, table.data_type.value, pooling)
            live = (each.kernel or kernel, each.data_type, each.pooling)
            if each.table == table.name and live != planned:
                raise InputError(
                    f"table {table.name!r} is not computed as the plan says: the plan has {_kind(*planned)}, "
                    f"the ranks have {_kind(*live)}; "
                    "hint: give the plan to DistributedModelParallel, and its tables' types and pooling to the model"
                )
    return found


def _later(shards: Sequence[Shard], num_ranks: int) -> tuple[Shard, ...]:
    """Return shards on devices that many ranks later."""
    return tuple(shard.model_copy(update={"device": shard.device + num_ranks}) for shard in shards)


def _require_planned(wanted: Sharding, found: Sharding, members: Sequence[int] | None) -> None:
    """Do nothing if a group holds what the plan wants. Raises InputError; ``members`` None: all ranks are the group."""
    for name in (*wanted, *(name for name in found if name not in wanted)):
        if found.get(name) != wanted.get(name):
            holders = (
                "the ranks" if members is None else f"numbered in their group, ranks {', '.join(map(str, members))}"
            )
            raise InputError(
                f"table {name!r} is not sharded as the plan says: the plan has {_listed(wanted.get(name, ()))}, "
                f"{holders} hold {_listed(found.get(name, ()))}; hint: give the plan to DistributedModelParallel"
            )


def sharded_collections(model: nn.Module) -> Sequence[ShardedEmbeddingBagCollection]:
    """Return TorchRec's sharded collections in a model. Raises InputError if there is none."""
    found = [module for module in model.modules() if isinstance(module, ShardedEmbeddingBagCollection)]
    if not found:
        raise InputError(
            "the model has no sharded EmbeddingBagCollection; hint: wrap it in DistributedModelParallel first"
        )
    return found


def sharding_ranks(model: nn.Module) -> tuple[int, ...]:
    """Return the ranks that shard the tables of a model with this one: all, or those of its group."""
    environment = sharded_collections(model)[0]._env  # noqa: SLF001 - TorchRec has no public way to it
    group = environment.sharding_pg if isinstance(environment, ShardingEnv2D) else environment.process_group
    return tuple(dist.get_process_group_ranks(group))


def _held_by_all(model: nn.Module, group: dist.ProcessGroup | None, collections: Collections | None) -> Sequence[_Held]:
    """Return the tables of all ranks. Raises InputError on all of them where one finds no sharded tables."""

    def held() -> list[_Held]:
        if collections is None:
            return [each for module in sharded_collections(model) for each in _held(module)]
        return [
            replace(each, table=names.get(each.table, f"{path}/{each.table}"))
            for path, names in collections.items()
            for each in _held(_collection_at(model, path))
        ]

    return [each for rank in agreed(held, group) for each in rank]


def _collection_at(model: nn.Module, path: str) -> ShardedCollection:
    """Return the collection that a path leads to, itself or in a wrapper of TorchRec's. Raises InputError."""
    try:
        place = get_unwrapped_module(model).get_submodule(path)
    except AttributeError as error:
        raise InputError(f"the model has no module {path!r}; hint: give the model that was planned") from error
    found = next((module for module in place.modules() if isinstance(module, _COLLECTIONS)), None)
    if found is None:
        raise InputError(
            f"{path or 'the model'} is a {type(place).__name__} without a sharded collection; "
            "hint: wrap the model in DistributedModelParallel with the sharders that it was planned for"
        )
    return found


def _sharding(held: Sequence[_Held], members: Sequence[int]) -> Sharding:
    """Return the shards of these ranks, which are numbered in this order."""
    number = {rank: index for index, rank in enumerate(members)}
    found: dict[str, list[Shard]] = {}
    for each in held:
        if each.shard is not None and each.shard.device in number:
            own = each.shard.model_copy(update={"device": number[each.shard.device]})
            found.setdefault(each.table, []).append(own)
    return {name: _in_order(found[name]) for name in sorted(found)}


def _held(module: ShardedCollection) -> list[_Held]:
    """Return this rank's part of each table, from the sizes of the tensors and the kernels themselves."""
    kernels = dict(_kernels(module))
    poolings = _poolings(module)
    held = []
    for key, tensor in module.state_dict().items():
        name = key.split(".", 1)[1].removesuffix(".weight")  # in `embedding_bags` or `embeddings`
        parts = [([0, 0], tensor)]  # a plain tensor is whole on every rank
        if isinstance(tensor, ShardedTensor):
            parts = [(local.metadata.shard_offsets, local.tensor) for local in tensor.local_shards()]
        for (row, column), part in parts:
            rows, columns = part.shape
            shard = (
                Shard(device=dist.get_rank(), row_offset=row, num_rows=rows, column_offset=column, num_columns=columns)
                if rows
                else None
            )
            kernel = kernels.get(name) if rows else None
            held.append(_Held(name, shard, kernel, dtype_to_data_type(part.dtype).value, poolings[name]))
    return held


def _poolings(module: ShardedCollection) -> Mapping[str, str]:
    """Return the pooling of each table."""
    if isinstance(module, ShardedEmbeddingBagCollection):
        return {config.name: config.pooling.value for config in module._embedding_bag_configs}  # noqa: SLF001 - no public way
    return {config.name: Pooling.NONE.value for config in module._embedding_configs}  # noqa: SLF001


def _kernels(module: ShardedCollection) -> Iterator[tuple[str, ComputeKernel]]:
    """Yield the kernel of each table that this rank looks up."""
    for each in module.modules():
        kernel = _KERNELS.get(type(each))
        if kernel is not None:
            places = [None] * len(each.config.embedding_tables)
            if kernel is ComputeKernel.FUSED:
                places = [place for _, _, place, _ in each.emb_module.embedding_specs]
            for table, place in zip(each.config.embedding_tables, places, strict=True):
                yield table.name, live_kernel(kernel, place, configured=table.compute_kernel.value)


def live_kernel(kernel: ComputeKernel, place: EmbeddingLocation | None, *, configured: str) -> ComputeKernel:
    """Return the kernel of a table from where FBGEMM keeps its weights.

    Args:
        kernel: fused, or the one that keeps no place for each table.
        place: of the weights. Processes on a CPU have all in host memory, whatever the kernel.
        configured: TorchRec's kernel, which says more where the place does not.
    """
    if place is EmbeddingLocation.HOST:
        return ComputeKernel(configured)
    return kernel if place is None else _PLACES[place]


def _in_order(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    return tuple(sorted(shards, key=lambda shard: (shard.column_offset, shard.row_offset, shard.device)))


def _kind(kernel: ComputeKernel, data_type: str, pooling: str) -> str:
    return f"kernel {kernel}, weights of type {data_type}, and pooling {pooling}"


def _listed(shards: Sequence[Shard]) -> str:
    if not shards:
        return "none of it"
    return ", ".join(
        f"rows {shard.row_offset} to {shard.row_offset + shard.num_rows} of columns {shard.column_offset} to "
        f"{shard.column_offset + shard.num_columns} on rank {shard.device}"
        for shard in shards
    )

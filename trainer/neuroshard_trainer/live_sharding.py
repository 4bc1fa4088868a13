"""The proof that the sharding in memory is the plan's: read from the live tensors of every rank, not from the plan."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch.distributed as dist
from neuroshard_api.document import Document
from neuroshard_api.plan import Plan, Shard
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from neuroshard_trainer.errors import InputError

Sharding = Mapping[str, tuple[Shard, ...]]
"""The shards of each table, by columns; a shard's device is its rank."""


class LiveSharding(Document):
    """``live-sharding.json`` of a run directory: what the ranks found in their memory when training began."""

    schema_name: ClassVar[str] = "live-sharding/v1"

    schema_version: Literal["live-sharding/v1"] = "live-sharding/v1"
    plan_sha256: str
    """Hash of the plan file that it was held against."""
    tables: dict[str, tuple[Shard, ...]]


def planned_sharding(plan: Plan) -> Sharding:
    """Return where the plan wants each table."""
    return {table.name: _by_columns(table.shards) for table in plan.tables}


def live_sharding(model: nn.Module, group: dist.ProcessGroup | None = None) -> Sharding:
    """Return where each table is, as the ranks find it in their own memory. All ranks must call this.

    Args:
        model: with sharded embedding collections in it.
        group: of all ranks, for CPU tensors; None is the default group.

    Raises:
        InputError: there are no sharded tables, or a table lies whole on every rank.
    """
    own = [each for module in sharded_collections(model) for each in _local_shards(module)]
    everyone: list[list[tuple[str, Shard]]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, own, group=group)
    found: dict[str, list[Shard]] = {}
    for name, shard in (each for rank in everyone for each in rank):
        found.setdefault(name, []).append(shard)
    return {name: _by_columns(found[name]) for name in sorted(found)}


def prove_sharding(model: nn.Module, plan: Plan, group: dist.ProcessGroup | None = None) -> Sharding:
    """Return the live sharding if it is exactly the plan's. All ranks must call this, and all get the same answer.

    Raises:
        InputError: a table lies otherwise; the message names it.
    """
    wanted, found = planned_sharding(plan), live_sharding(model, group)
    for name in (*wanted, *(name for name in found if name not in wanted)):
        if found.get(name) != wanted.get(name):
            raise InputError(
                f"table {name!r} is not sharded as the plan says: the plan has {_listed(wanted.get(name, ()))}, "
                f"the ranks hold {_listed(found.get(name, ()))}; give the plan to DistributedModelParallel"
            )
    return found


def sharded_collections(model: nn.Module) -> Sequence[ShardedEmbeddingBagCollection]:
    """Return TorchRec's sharded collections in a model. Raises InputError if there is none."""
    found = [module for module in model.modules() if isinstance(module, ShardedEmbeddingBagCollection)]
    if not found:
        raise InputError("the model has no sharded EmbeddingBagCollection; wrap it in DistributedModelParallel first")
    return found


def _local_shards(module: ShardedEmbeddingBagCollection) -> list[tuple[str, Shard]]:
    """Return what this rank holds of each table, from the sizes of the tensors themselves."""
    shards = []
    for key, tensor in module.state_dict().items():
        name = key.removeprefix("embedding_bags.").removesuffix(".weight")
        if not isinstance(tensor, ShardedTensor):
            raise InputError(f"table {name!r} is not sharded: it lies whole on every rank; plan it too")
        for local in tensor.local_shards():
            (row, column), (rows, columns) = local.metadata.shard_offsets, local.tensor.shape
            shard = Shard(
                device=dist.get_rank(), row_offset=row, num_rows=rows, column_offset=column, num_columns=columns
            )
            shards.append((name, shard))
    return shards


def _by_columns(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    return tuple(sorted(shards, key=lambda shard: (shard.column_offset, shard.device)))


def _listed(shards: Sequence[Shard]) -> str:
    if not shards:
        return "none of it"
    return ", ".join(
        f"columns {shard.column_offset} to {shard.column_offset + shard.num_columns} on rank {shard.device}"
        for shard in shards
    )

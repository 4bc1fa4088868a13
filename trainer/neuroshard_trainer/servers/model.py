"""The model of a plan with embedding servers, as trainers and as servers have it.

    tables.0    tables on the trainers' devices    sharded over the trainers
    tables.1    tables on servers                  sharded over all ranks, with shards on servers alone

The second collection is sharded before DistributedModelParallel gets the model, which leaves it as it is. A server has
nothing but this collection; its batches have no samples. It is in host memory on all ranks, and its exchanges are
gloo's; pooled embeddings are copied to the GPUs of trainers. Checkpoints have the names of a model with one collection
(`common_name`), so that a run may continue with other servers, or none.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, cast

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.model import Model
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingEnv,
    ShardMetadata,
)
from torchrec.optim.keyed import CombinedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel, bag_collection
from neuroshard_trainer.servers.copies import DeviceCopies, copies_of
from neuroshard_trainer.sharding.plan_adapter import sharding_plan

NEAR_PATH, FAR_PATH = f"{TABLES_PATH}.0", f"{TABLES_PATH}.1"
CPU = torch.device("cpu")
EXCHANGES = 100
"""Exchanges ahead whose times are kept."""


class RowsAhead:
    """Pooled embeddings of tables on servers that are looked up apart from the step, and whose gradients return so.

    Args:
        found: by a thread, with the graph of the look-up.
    """

    def __init__(self, found: "Future[KeyedTensor]") -> None:
        self._found = found
        self._leaf: torch.Tensor | None = None

    def values(self) -> torch.Tensor:
        """Wait for all pooled embeddings, one row for each sample."""
        if self._leaf is None:
            self._leaf = self._found.result().values().detach().requires_grad_()
        return self._leaf

    def wait(self) -> KeyedTensor:
        """Wait for the pooled embeddings of all features."""
        found = self._found.result()
        return KeyedTensor(found.keys(), found.length_per_key(), self.values())

    def give_back(self) -> None:
        """Exchange the gradients, by which servers update their rows. All ranks must call this."""
        torch.autograd.backward(self._found.result().values(), self.values().grad)


@dataclass(slots=True)
class ExchangesAhead:
    """Exchanges with servers next to the steps of a training with lookahead."""

    rows: RowsAhead | None = None
    """Of the batch of the next forward pass. None: the pass looks up for itself."""
    lookups_ms: deque[float] = field(default_factory=partial(deque, maxlen=EXCHANGES))
    updates_ms: deque[float] = field(default_factory=partial(deque, maxlen=EXCHANGES))
    """Milliseconds of the last look-ups, and of the last exchanges of gradients."""

    def hidden_ms(self, waited_ms: float) -> float | None:
        """Return the part of a step's exchanges that it did not wait for. None: there are none ahead."""
        if not self.lookups_ms or not self.updates_ms:
            return None
        return max(0.0, median(self.lookups_ms) + median(self.updates_ms) - waited_ms)


class ServedModel(RecommendationModel):
    """The model of a trainer.

    Args:
        model, tables: as for the model without servers, which has the same first weights.
        far: tables on servers.
    """

    def __init__(self, model: Model, tables: Sequence[Table], far: Sequence[Table]) -> None:
        super().__init__(model, tables)
        names = {table.name for table in far}
        near = [table for table in tables if table.name not in names]
        self.tables = nn.ModuleList([bag_collection(near), bag_collection(far)])
        self._gradient_factor = 1.0
        self._copies: DeviceCopies | None = None
        self.ahead = ExchangesAhead()
        self.wait_hooks: tuple[Callable[[], None], Callable[[], None]] = (_nothing, _nothing)
        """Called before and after each wait for servers in forward passes: to send ids, and for pooled embeddings."""

    @property
    def far(self) -> nn.Module:
        """The collection of the tables on servers."""
        return cast("nn.ModuleList", self.tables)[1]

    def shard_far(self, plan: GivenPlan, sharder: EmbeddingBagCollectionSharder, device: torch.device) -> None:
        """Shard the tables on servers over all ranks, for a trainer on a device. Needs no collectives."""
        collections = cast("nn.ModuleList", self.tables)
        collections[1] = sharded_far(collections[1], plan, sharder)
        self._gradient_factor = dist.get_world_size() / plan.num_devices
        self._copies = copies_of(device)

    def forward(  # type: ignore[override] # tables on servers have lookups of their own
        self, dense: torch.Tensor, lookups: KeyedJaggedTensor, far_lookups: Sequence[KeyedJaggedTensor]
    ) -> torch.Tensor:
        """Return the logits, shape (samples,).

        Args:
            dense: shape (samples, dense features).
            lookups: of the tables on devices.
            far_lookups: of the tables on servers, one entry.
        """
        near_tables, far_tables = cast("nn.ModuleList", self.tables)
        begin, end = self.wait_hooks
        begin()
        far = self.ahead.rows or far_tables(far_lookups[0])  # servers begin first
        end()
        embedded_dense = self.dense_arch(dense)
        pooled = near_tables(lookups).to_dict()
        begin()
        found = far.wait()
        values = _brought(found.values(), self._gradient_factor, self._copies)
        end()
        pooled.update(KeyedTensor(found.keys(), found.length_per_key(), values).to_dict())
        return self._logits(embedded_dense, pooled)


def _nothing() -> None:
    """Do nothing."""


class ServerModel(nn.Module):
    """What a server has: its shards of the tables on servers.

    Args:
        plan: with servers.
        sharder: with the tables' optimizer.
    """

    def __init__(self, plan: GivenPlan, sharder: EmbeddingBagCollectionSharder) -> None:
        super().__init__()
        served = plan.of_servers
        assert served is not None, "this process is a server's"
        self.tables = nn.ModuleList(
            [nn.Identity(), sharded_far(bag_collection(served.resolved.tables.tables), plan, sharder)]
        )
        self.fused_optimizer = CombinedOptimizer([(FAR_PATH, self.tables[1].fused_optimizer)])
        self.ahead = ExchangesAhead()

    @property
    def far(self) -> nn.Module:
        """The collection of the tables on servers."""
        return self.tables[1]

    def forward(
        self, _dense: torch.Tensor, _lookups: KeyedJaggedTensor, far_lookups: Sequence[KeyedJaggedTensor]
    ) -> torch.Tensor:
        """Look up for the trainers, and return the logits of no samples, whose backward pass updates the tables."""
        pooled: torch.Tensor = (self.ahead.rows or self.far(far_lookups[0])).values()
        return pooled.sum(dim=1)


class _Brought(torch.autograd.Function):
    """Values on the trainer's device, and their gradients in host memory, times a factor."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, factor: float, copies: DeviceCopies | None) -> torch.Tensor:  # noqa: ANN401 - torch's
        """Return the values."""
        ctx.factor, ctx.copies = factor, copies
        return values.view_as(values) if copies is None else copies.to_device(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401 - torch's
        """Return the gradient times the factor."""
        scaled = gradient * ctx.factor
        return (scaled if ctx.copies is None else ctx.copies.to_host(scaled)), None, None


def _brought(values: torch.Tensor, factor: float, copies: DeviceCopies | None) -> torch.Tensor:
    """Return servers' values on the device; TorchRec divides gradients by all ranks, not by those that have samples."""
    found: torch.Tensor = _Brought.apply(values, factor, copies)
    return found


def sharded_far(collection: nn.Module, plan: GivenPlan, sharder: EmbeddingBagCollectionSharder) -> nn.Module:
    """Return a collection sharded over all ranks as the plan has its tables on servers. Needs no collectives."""
    env = ShardingEnv(dist.get_world_size(), dist.get_rank(), None)  # with a group it would make a mesh, a collective
    env.process_group = dist.group.WORLD
    sharded: nn.Module = sharder.shard(collection, far_sharding(plan), env, device=CPU, module_fqn=FAR_PATH)
    return sharded


def far_sharding(plan: GivenPlan) -> EmbeddingModuleShardingPlan:
    """Return the sharding of the tables on servers, whose ranks come after the trainers'."""
    served = plan.of_servers
    assert served is not None, "the plan has servers"
    whole = sharding_plan(served, module_path=FAR_PATH, compute_device="cpu").plan[FAR_PATH]
    return EmbeddingModuleShardingPlan({name: _after(parameter, plan.num_devices) for name, parameter in whole.items()})


def _after(parameter: ParameterSharding, num_trainers: int) -> ParameterSharding:
    """Return the sharding of a table with each shard that many ranks later."""
    assert parameter.ranks is not None, "the adapter gives ranks"
    assert isinstance(parameter.sharding_spec, EnumerableShardingSpec), "tables on servers are cut by columns alone"
    ranks = [rank + num_trainers for rank in parameter.ranks]
    shards = [
        ShardMetadata(
            shard_offsets=list(shard.shard_offsets), shard_sizes=list(shard.shard_sizes), placement=f"rank:{rank}/cpu"
        )
        for rank, shard in zip(ranks, parameter.sharding_spec.shards, strict=True)
    ]
    return ParameterSharding(
        sharding_type=parameter.sharding_type,
        compute_kernel=parameter.compute_kernel,
        ranks=ranks,
        sharding_spec=EnumerableShardingSpec(shards),
    )

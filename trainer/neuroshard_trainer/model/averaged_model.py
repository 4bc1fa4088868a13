"""A model whose tables several groups of ranks hold whole, each sharded within its group: TorchRec's DMPCollection.

Every step trains a group's copy with the group's samples. Every few steps the copies are averaged, with their
optimizer state: with SGD and an average after each step that is the model that all ranks train together. Sums of
squared gradients are larger in groups (`moment_scale`), so that the tables' rate grows with their root.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.sharding.replication import GroupLayout, moment_scale
from torch import nn
from torch.distributed.remote_device import _remote_device
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel, DMPCollection
from torchrec.distributed.types import DMPCollectionContext, EnumerableShardingSpec, ShardingEnv2D, ShardingPlan

from neuroshard_trainer.ranks.process import limit_waits

NO_HOOKS: tuple[Callable[[], None], Callable[[], None]] = (lambda: None, lambda: None)


class AveragedModel(DMPCollection):  # type: ignore[misc] # torchrec, untyped
    """DMPCollection on GPUs and on processes of a CPU, which TorchRec's own constructor refuses.

    State dicts hold ShardedTensors of this rank's group, as those of a model without groups do, and no DTensors.

    Args:
        module: with embedding collections that are not sharded yet.
        plan: of one group, whose ranks it numbers from 0.
        sharder: with the tables' optimizer.
        given: the plan with its groups.
        device: of this rank.
        timeout_seconds: how long collectives among ranks of a group, and among copies, wait for the others. If unset:
            torch's default.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: ShardingPlan,
        sharder: EmbeddingBagCollectionSharder,
        *,
        given: GivenPlan,
        device: torch.device,
        timeout_seconds: float | None = None,
    ) -> None:
        world, replication = dist.group.WORLD, given.replication
        assert world is not None, "the process has met the others"
        assert replication is not None, "the plan has groups"
        group = given.resolved.topology
        is_contiguous = replication.layout is GroupLayout.CONTIGUOUS
        self._device = device
        self._pg = world
        self._global_rank = dist.get_rank()
        self._custom_all_reduce = None
        self._all_reduce_hook = _mean_over_copies if device.type == "cpu" else None
        self._use_sharded_relay = False
        context = DMPCollectionContext(
            module=None,
            plan=plan,
            sharding_group_size=group.num_devices,
            node_group_size=group.devices_per_domain,
            use_inter_host_allreduce=is_contiguous,
        )
        self._default_ctx = context
        self._submodule_ctxs: list[DMPCollectionContext] = []
        self._ctxs = [context]
        context.device_mesh, context.sharding_pg, context.replica_pg = self._create_process_groups(
            global_rank=self._global_rank,
            world_size=given.num_devices,
            local_size=group.num_devices,
            use_inter_host_allreduce=is_contiguous,
        )
        if timeout_seconds is not None:
            limit_waits(timeout_seconds, context.sharding_pg, context.replica_pg)
        self._remap_sharding_plan(
            plan=plan,
            rank=self._global_rank,
            step=replication.num_groups,
            sharding_group_size=group.num_devices,
            use_inter_host_allreduce=is_contiguous,
        )
        if device.type == "cpu":
            _name_cpus(plan)
        environment = ShardingEnv2D(
            global_pg=world,
            sharding_pg=context.sharding_pg,
            replica_pg=context.replica_pg,
            device_mesh=context.device_mesh,
            node_group_size=group.devices_per_domain,
            use_inter_host_allreduce=is_contiguous,
        )
        environment.output_dtensor = False
        DistributedModelParallel.__init__(self, module, environment, device, plan, [sharder], init_data_parallel=False)
        self._group_sharded_modules(self._ctxs)
        self._cache_sync_tensors(self._ctxs)
        self.moment_scale = max(moment_scale(each, replication.num_groups) for each in given.request.optimizers)
        """The tables' sums of squared gradients over those of one model."""
        self._sync_every_steps = replication.sync_every_steps
        self._steps_since_sync = 0
        self.sync_hooks = NO_HOOKS
        """What is called before and after each average."""

    def end_step(self) -> None:
        """Count a step, and average the copies where that is due. All ranks must call this."""
        self._steps_since_sync += 1
        if self._steps_since_sync >= self._sync_every_steps:
            self.agree()

    def agree(self) -> None:
        """Average the copies, unless no step was taken since the last time. All ranks must call this."""
        if not self._steps_since_sync:
            return
        before, after = self.sync_hooks
        before()
        self.sync()
        after()
        self._steps_since_sync = 0


def _mean_over_copies(group: dist.ProcessGroup, tensors: Sequence[torch.Tensor]) -> None:
    """Average tensors with gloo, which adds up and does not divide."""
    for each in tensors:
        dist.all_reduce(each, group=group)
        each.div_(group.size())


def _name_cpus(plan: ShardingPlan) -> None:
    """Place shards on `cpu`: DMPCollection numbers devices, and a CPU has no number."""
    for tables in plan.plan.values():
        for parameter in tables.values():
            if isinstance(parameter.sharding_spec, EnumerableShardingSpec):
                for shard in parameter.sharding_spec.shards:
                    shard.placement = _remote_device(f"rank:{shard.placement.rank()}/cpu")

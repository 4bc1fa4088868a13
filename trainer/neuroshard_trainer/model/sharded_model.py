"""A model whose tables TorchRec has sharded: on all ranks, or on none.

Each rank builds the kernels of its own shards, so that TorchRec, FBGEMM, or a full memory may refuse on one rank alone.
The others would wait for it in the first collective. So the collectives of construction come last:

    kernels, state, and first weights of the own shards   |   vote   |   groups of the gradients' all-reduce
"""

import logging
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.process.errors import InputError
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from neuroshard_trainer.dense.parallel import DenseParallelWrapper, unit_module
from neuroshard_trainer.model.averaged_model import AveragedModel
from neuroshard_trainer.model.initial_weights import set_initial_weights
from neuroshard_trainer.ranks.agreement import together
from neuroshard_trainer.ranks.failures import full_memory, is_of_communication
from neuroshard_trainer.servers.model import ServedModel, ServerModel
from neuroshard_trainer.servers.process import full_server, is_full

logger = logging.getLogger(__name__)


def sharded_model(
    model: nn.Module,
    plan: ShardingPlan,
    sharder: EmbeddingBagCollectionSharder,
    *,
    device: torch.device,
    seed: int = 0,
    seeds: Mapping[str, int] | None = None,
    given: GivenPlan | None = None,
    group: dist.ProcessGroup | None = None,
    timeout_seconds: float | None = None,
    trainers: dist.ProcessGroup | None = None,
) -> DistributedModelParallel:
    """Return the model under a plan, an `AveragedModel` where the plan has groups. All ranks must call this.

    Args:
        model: with embedding collections that are not sharded yet.
        plan: as `sharding_plan` returns it.
        sharder: with the tables' optimizer.
        device: of this rank.
        seed: of the tables' first weights.
        seeds: of those of variants. If unset: there are none.
        given: what the plan was made from. If unset: a plan without groups.
        group: of all ranks, for CPU tensors; None is the default group.
        timeout_seconds: how long collectives in the plan's groups wait for the others. If unset: torch's default.
        trainers: ranks that the model is sharded over, all but embedding servers. If unset: the default group.

    Raises:
        InputError: one rank or several cannot build their shards; on all ranks, with the first one's reason.
    """

    def own_shards() -> DistributedModelParallel:
        own = _own_shards(
            model, plan, sharder, device=device, given=given, timeout_seconds=timeout_seconds, trainers=trainers
        )
        set_initial_weights(own, seed=seed, seeds=seeds)
        return own

    sharded = together(own_shards, group)
    for module in sharded.modules():
        if isinstance(module, _OwnShards):
            module.meet()
    sharded.init_data_parallel()
    return sharded


class _OwnShards(ShardedEmbeddingBagCollection):  # type: ignore[misc] # torchrec, untyped
    """A sharded collection whose collectives of construction wait for `meet`."""

    _has_met = False

    def meet(self) -> None:
        """Join the gradients' all-reduce. All ranks must call this."""
        self._has_met = True
        self.init_data_parallel()

    def reset_parameters(self) -> None:
        """Do nothing: TorchRec's first weights differ by the plan, and copies of a table are broadcast."""

    def init_data_parallel(self) -> None:
        """Join the all-reduce of data_parallel tables' gradients."""
        if self._has_met:
            super().init_data_parallel()


class _OwnShardsSharder(EmbeddingBagCollectionSharder):  # type: ignore[misc] # torchrec, untyped
    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedEmbeddingBagCollection:
        return _OwnShards(
            module=module,
            table_name_to_parameter_sharding=params,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )


def _own_shards(
    model: nn.Module,
    plan: ShardingPlan,
    sharder: EmbeddingBagCollectionSharder,
    *,
    device: torch.device,
    given: GivenPlan | None,
    timeout_seconds: float | None,
    trainers: dist.ProcessGroup | None,
) -> DistributedModelParallel:
    """Build this rank's shards. Raises InputError where that is refused here."""
    world = dist.group.WORLD
    assert world is not None, "the process has met the others"
    own = _OwnShardsSharder(sharder.fused_params, sharder.qcomm_codecs_registry)
    try:
        env = ShardingEnv.from_process_group(world) if trainers is None else _environment(trainers)
        if given is not None and isinstance(model, ServedModel):
            model.shard_far(given, own, device)
        if given is not None and given.replication is not None:
            return AveragedModel(model, plan, own, given=given, device=device, timeout_seconds=timeout_seconds)
        wrapper = None
        if given is not None and given.dense is not None:
            for unit in given.dense.units:
                unit_module(model, unit)
            wrapper = DenseParallelWrapper(given, timeout_seconds=timeout_seconds)
        return DistributedModelParallel(
            model,
            env=env,
            device=device,
            plan=plan,
            sharders=[own],
            init_data_parallel=False,
            data_parallel_wrapper=wrapper,
        )
    except InputError:
        raise
    except torch.OutOfMemoryError as error:
        raise full_memory("while the model was set up", error) from error
    except Exception as error:
        if is_of_communication(error):
            raise
        logger.warning("TorchRec's error was:", exc_info=error)
        raise InputError(
            f"TorchRec cannot build the plan's shards ({_first_line(error)})"
            f"; hint: check the plan with `neuroshard validate`"
        ) from error


def _environment(group: dist.ProcessGroup) -> ShardingEnv:
    """Return the environment of some ranks. TorchRec's own way to one makes a mesh, with a collective of all ranks."""
    found = ShardingEnv(dist.get_world_size(group), dist.get_rank(group), None)
    found.process_group = group
    return found


def server_model(
    plan: GivenPlan,
    sharder: EmbeddingBagCollectionSharder,
    *,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
) -> ServerModel:
    """Return the model of an embedding server, while trainers call `sharded_model`. Raises InputError as it does."""

    def own_shards() -> ServerModel:
        try:
            own = ServerModel(plan, _OwnShardsSharder(sharder.fused_params, sharder.qcomm_codecs_registry))
            set_initial_weights(own, seed=seed)
        except (MemoryError, RuntimeError) as error:
            if is_full(error):
                raise full_server(plan, error) from error
            raise
        return own

    return together(own_shards, group)


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

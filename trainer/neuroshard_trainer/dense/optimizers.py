"""Optimizers as the job names them: of tables, fused into the backward pass or not, and of the dense part."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.training import DenseOptimizer, Training
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.kernels import FBGEMM_OPTIMIZERS, kernel_problem
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import replicated_optimizer_problem
from torch import nn
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard_trainer.communication.codecs import Codecs
from neuroshard_trainer.dense.parallel import by_kind
from neuroshard_trainer.model.variant_model import variant_of

EPSILON = 1e-8
"""Added to the roots of Adagrad's sums; FBGEMM's default, which TorchRec's own for dense tables is not."""
DENSE_OPTIMIZERS = {
    DenseOptimizer.SGD: torch.optim.SGD,
    DenseOptimizer.ADAGRAD: torch.optim.Adagrad,
    DenseOptimizer.ADAM: torch.optim.Adam,
}
"""torch's class of each optimizer of the dense part."""


def embedding_sharder(
    optimizer: Optimizer, *, learning_rate: float, device: torch.device, codecs: Codecs | None = None
) -> EmbeddingBagCollectionSharder:
    """Return TorchRec's sharder with the optimizer in the tables' kernels, and codecs around their all-to-all.

    Raises:
        InputError: FBGEMM has no such kernel for the device.
    """
    problem = kernel_problem("cuda" if device.type == "cuda" else "cpu", optimizer=optimizer)
    if problem is not None:
        raise InputError(f"spec.model.embeddingOptimizer: {problem}")
    return EmbeddingBagCollectionSharder(
        fused_params={
            "optimizer": EmbOptimType[FBGEMM_OPTIMIZERS[optimizer]],
            "learning_rate": learning_rate,
            "eps": EPSILON,
        },
        qcomm_codecs_registry=None if codecs is None else codecs.registry,
    )


def replicated_optimizer(
    model: nn.Module, optimizer: Optimizer, *, learning_rate: float
) -> KeyedOptimizerWrapper | None:
    """Return the optimizer of data_parallel tables, whose kernels have none. None: there are no such tables.

    It updates as the fused one does: with the same rate and epsilon, and rows without a gradient not at all. Call its
    ``step`` after the backward pass.

    Raises:
        InputError: the dense form of the optimizer updates otherwise than the fused one.
    """
    weights = replicated_weights(model)
    if not weights:
        return None
    groups = _by_variant(weights)
    problem = replicated_optimizer_problem(next(iter(weights)).split(".")[-2], optimizer)
    if problem is not None:
        raise InputError(problem)
    if optimizer is Optimizer.SGD:
        return KeyedOptimizerWrapper(weights, lambda _: torch.optim.SGD(groups, lr=learning_rate))
    kind = RowWiseAdagrad if optimizer is Optimizer.ROWWISE_ADAGRAD else torch.optim.Adagrad
    return KeyedOptimizerWrapper(weights, lambda _: kind(groups, lr=learning_rate, eps=EPSILON))


def replicated_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of data_parallel tables by their names in the model."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    weights = [
        (module.embedding_bags if isinstance(module, ShardedEmbeddingBagCollection) else module.embeddings)[name].weight
        for module in model.modules()
        if isinstance(module, (ShardedEmbeddingBagCollection, ShardedEmbeddingCollection))
        for name, sharding in module.module_sharding_plan.items()
        if sharding.sharding_type == ShardingType.DATA_PARALLEL.value
    ]
    return {names[id(weight)]: weight for weight in weights}


def share_replicated_weights(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give all ranks rank 0's weights of data_parallel tables, which TorchRec may begin differently on each."""
    with torch.no_grad():
        for weight in replicated_weights(model).values():
            values = weight.detach().clone().as_subclass(torch.Tensor)
            dist.broadcast(values, src=0, group=group)
            weight.copy_(values)


def dense_optimizer(model: nn.Module, training: Training, *, tables_path: str) -> KeyedOptimizer:
    """Return the optimizer of all parameters but the tables', which lie below ``tables_path``.

    Whole parameters and sharded ones are groups of their own, and so are those of each variant. An embedding server has
    none.
    """
    dense: dict[str, nn.Parameter] = {
        name: weight for name, weight in model.named_parameters() if not name.startswith(f"{tables_path}.")
    }
    if not dense:
        return CombinedOptimizer([])
    kind = DENSE_OPTIMIZERS[training.dense_optimizer]
    rate = float(training.dense_learning_rate)
    groups = [{"params": each} for group in _by_variant(dense) for each in by_kind(group["params"])]
    return KeyedOptimizerWrapper(dense, lambda weights: kind(groups or weights, lr=rate))


def _by_variant(weights: Mapping[str, nn.Parameter]) -> list[dict[str, list[nn.Parameter]]]:
    """Return a group of parameters for each variant; without variants there is one."""
    groups: dict[str | None, list[nn.Parameter]] = {}
    for name, weight in weights.items():
        groups.setdefault(variant_of(name), []).append(weight)
    return [{"params": each} for each in groups.values()]


def set_table_rates(tables: nn.Module, rate: Callable[[str], float]) -> None:
    """Have tables train with rates of their own: those of one rate share a kernel.

    Args:
        tables: a collection that is not sharded yet. TorchRec takes these attributes of its parameters over the
            sharder's settings.
        rate: of a parameter's name in the collection.
    """
    for name, weight in tables.named_parameters():
        weight._optimizer_classes = [None]  # type: ignore[attr-defined] # noqa: SLF001 - as torch sets them
        weight._optimizer_kwargs = [{"learning_rate": rate(name)}]  # type: ignore[attr-defined] # noqa: SLF001

"""Optimizers as the job names them: one fused into the tables' backward pass, one for the dense part."""

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.job_training import DenseOptimizer, Training
from neuroshard_api.kernels import FBGEMM_OPTIMIZERS, kernel_problem
from neuroshard_api.tables import Optimizer
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizerWrapper

from neuroshard_trainer.errors import InputError

DENSE_OPTIMIZERS = {
    DenseOptimizer.SGD: torch.optim.SGD,
    DenseOptimizer.ADAGRAD: torch.optim.Adagrad,
    DenseOptimizer.ADAM: torch.optim.Adam,
}
"""torch's class of each optimizer of the dense part."""


def embedding_sharder(
    optimizer: Optimizer, *, learning_rate: float, device: torch.device
) -> EmbeddingBagCollectionSharder:
    """Return TorchRec's sharder with the optimizer in the tables' kernels.

    Raises:
        InputError: FBGEMM has no such kernel for the device.
    """
    problem = kernel_problem("cuda" if device.type == "cuda" else "cpu", optimizer=optimizer)
    if problem is not None:
        raise InputError(f"spec.model.embeddingOptimizer: {problem}")
    return EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType[FBGEMM_OPTIMIZERS[optimizer]], "learning_rate": learning_rate}
    )


def dense_optimizer(model: DistributedModelParallel, training: Training, *, tables_path: str) -> KeyedOptimizerWrapper:
    """Return the optimizer of all parameters but the tables', which lie below ``tables_path``."""
    dense: dict[str, nn.Parameter] = {
        name: weight for name, weight in model.named_parameters() if not name.startswith(f"{tables_path}.")
    }
    kind = DENSE_OPTIMIZERS[training.dense_optimizer]
    return KeyedOptimizerWrapper(dense, lambda weights: kind(weights, lr=float(training.dense_learning_rate)))

"""The step counter in the tables' kernels, which Adam's bias correction divides by.

FBGEMM counts forward passes, evaluations included, and no state dict holds the count for Adam. Here it is always the
number of training steps, which a checkpoint has anyway.
"""

from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn


def set_optimizer_step(model: nn.Module, step: int) -> None:
    """Make the kernels of all tables count from ``step`` steps done. Call it after loading, and after evaluations."""
    for kernel in model.modules():
        if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen) and hasattr(kernel, "iter"):  # SGD has none
            kernel.set_optimizer_step(step)  # on the device, for state dicts
            kernel.iter_cpu.fill_(step)  # on the host, for the kernels

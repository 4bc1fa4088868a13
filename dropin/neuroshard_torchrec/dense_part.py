"""Memory of the parameters of a module that are no tables."""

import logging

from torch import nn
from torch.nn.parameter import is_lazy

from neuroshard_torchrec.model_tables import ModelTables

DENSE_COPIES = 4
"""Weights, gradients, and two moments of the dense part."""

logger = logging.getLogger(__name__)


def dense_bytes(module: nn.Module, tables: ModelTables) -> int:
    """Return the memory of all other parameters of a module, without activations; a warning counts unknown ones."""
    of_tables = {id(weight) for each in tables.collections for weight in each.weights.values()}
    dense = [weight for weight in module.parameters() if id(weight) not in of_tables]
    lazy = sum(map(is_lazy, dense))
    if lazy:
        logger.warning("%d dense parameters have no shape yet; their memory is not counted", lazy)
    return DENSE_COPIES * sum(weight.numel() * weight.element_size() for weight in dense if not is_lazy(weight))

"""Memory of the parameters of a module that are neither tables nor maps of ids to rows."""

from torch import nn
from torch.nn.parameter import is_lazy

from neuroshard_torchrec.first_rank import logger_of
from neuroshard_torchrec.model_tables import ModelTables

DENSE_COPIES = 4
"""Weights, gradients, and two moments of the dense part."""

logger = logger_of(__name__)


def dense_bytes(module: nn.Module, tables: ModelTables) -> int:
    """Return the memory of all other parameters of a module, without activations; a warning counts unknown ones."""
    sparse = {id(weight) for each in tables.collections for weight in each.weights.values()}
    for id_map in (id_map for each in tables.collections for id_map in each.id_maps.values()):
        sparse.update(map(id, id_map.parameters()))
    dense = [weight for weight in module.parameters() if id(weight) not in sparse]
    lazy = sum(map(is_lazy, dense))
    if lazy:
        logger.warning("%d dense parameters have no shape yet; their memory is not counted", lazy)
    return DENSE_COPIES * sum(weight.numel() * weight.element_size() for weight in dense if not is_lazy(weight))

"""Memory and weight matrices of the parameters of a module that are neither tables nor maps of ids to rows."""

from collections.abc import Mapping

from neuroshard_api.documents.dense_profile import DenseMatrices
from torch import nn
from torch.nn.parameter import is_lazy

from neuroshard_torchrec.first_rank import logger_of
from neuroshard_torchrec.model_tables import ModelTables

DENSE_COPIES = 4
"""Weights, gradients, and two moments of the dense part."""

logger = logger_of(__name__)


_NAMED = 3


def dense_bytes(module: nn.Module, tables: ModelTables) -> int:
    """Return the memory of all other parameters of a module, without activations; a warning counts unknown ones."""
    dense = list(_dense_parameters(module, tables).values())
    lazy = sum(map(is_lazy, dense))
    if lazy:
        logger.warning("%d dense parameters have no shape yet; their memory is not counted", lazy)
    return DENSE_COPIES * sum(weight.numel() * weight.element_size() for weight in dense if not is_lazy(weight))


def dense_matrices(module: nn.Module, tables: ModelTables) -> DenseMatrices | None:
    """Return the weight matrices of a module's dense part, but for those that rows are looked up in. None: none.

    Linear layers and cross networks have them; those of attention multiply once for each element of a sequence.
    """
    looked_up = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)}
    found = {
        name: weight.numel()
        for name, weight in _dense_parameters(module, tables).items()
        if not is_lazy(weight) and weight.dim() == 2 and weight.numel() and id(weight) not in looked_up  # noqa: PLR2004
    }
    if not found:
        return None
    largest = sorted(found, key=lambda name: (-found[name], name))[:_NAMED]
    return DenseMatrices(num_matrices=len(found), num_parameters=sum(found.values()), largest=tuple(largest))


def _dense_parameters(module: nn.Module, tables: ModelTables) -> Mapping[str, nn.Parameter]:
    """Return a module's other parameters by name, each once."""
    sparse = {id(weight) for each in tables.collections for weight in each.weights.values()}
    for id_map in (id_map for each in tables.collections for id_map in each.id_maps.values()):
        sparse.update(map(id, id_map.parameters()))
    return {name: weight for name, weight in module.named_parameters() if id(weight) not in sparse}

"""The embedding collections of a module, by path. Reads the module; plans nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection, FusedEmbeddingCollection
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import ManagedCollisionModule

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.first_rank import logger_of

logger = logger_of(__name__)

Sharders = Sequence[ModuleSharder[nn.Module]]
Bags: TypeAlias = EmbeddingBagCollection | FusedEmbeddingBagCollection
"""Collections whose rows are pooled."""
Rows: TypeAlias = EmbeddingCollection | FusedEmbeddingCollection
"""Collections that return the rows themselves."""
_MANAGED_COLLISION = (ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection)


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCollection:
    """One module whose tables a sharder spreads."""

    path: str
    """Within the module that is planned; empty: it is that module."""
    configs: tuple[BaseEmbeddingConfig, ...]
    weights: Mapping[str, nn.Parameter]
    """By the table's name."""
    sharder: ModuleSharder[nn.Module]
    is_weighted: bool
    """Whether the input has a weight of each lookup; those of feature processors do not travel."""
    is_sequence: bool
    """Whether it returns every looked-up row."""
    is_processed: bool
    """Whether feature processors compute the weights of its lookups."""
    optimizer: type | None
    """Class of torch's optimizer that the module itself is made with. None: it is a sharder's, or a parameter's."""
    id_maps: Mapping[str, ManagedCollisionModule]
    """Managed collision modules, which map ids to rows, by the table's name; empty: the ids of a batch are rows."""


def collections_of(module: nn.Module, sharders: Sharders | None = None) -> tuple[TableCollection, ...]:
    """Return the collections of tables that the sharders spread, in the module's order; none where they take none.

    Args:
        module: on any device, meta included.
        sharders: as DistributedModelParallel gets them. None: TorchRec's default ones.

    Raises:
        DropInError: one is of another kind, or two collections share a table.
    """
    given = get_default_sharders() if sharders is None else sharders
    by_type = {sharder_name(each.module_type): each for each in given}
    found = tuple(each for each in _collections(module, "", by_type) if each.configs)
    owners: dict[int, str] = {}
    for collection in found:
        for name, weight in collection.weights.items():
            place = _place(collection.path, name)
            if id(weight) in owners:
                raise DropInError(
                    f"table {place} is the same parameter as {owners[id(weight)]}, "
                    "and TorchRec would shard it twice; hint: give each collection its own tables"
                )
            owners[id(weight)] = place
    return found


def _collections(
    module: nn.Module, path: str, by_type: Mapping[str, ModuleSharder[nn.Module]]
) -> Iterator[TableCollection]:
    sharder = by_type.get(sharder_name(type(module)))
    if sharder is None:
        if isinstance(module, Bags | Rows):
            logger.warning(
                "%s is a %s, which none of the sharders takes: every rank keeps it whole, as part of the dense model",
                path or "the module",
                type(module).__name__,
            )
        for name, child in module._modules.items():  # noqa: SLF001 - named_children leaves out a child's second name
            if child is not None:
                yield from _collections(child, _place(path, name), by_type)
        return
    inner = _tables_of(module)
    if inner is None:
        if not sharder.shardable_parameters(module):
            return  # as object pools: the sharder has no use for a plan
        raise DropInError(
            f"{path or 'the module'} is a {type(module).__module__}.{type(module).__name__}; plans cover "
            "EmbeddingBagCollection and EmbeddingCollection of torchrec.modules, fused or not, with or without feature "
            "processors or managed collision; hint: plan modules with other collections with TorchRec's planner"
        )
    configs: Sequence[BaseEmbeddingConfig] = (
        inner.embedding_bag_configs() if isinstance(inner, Bags) else inner.embedding_configs()
    )
    weights = sharder.shardable_parameters(module)
    fused = inner if isinstance(inner, FusedEmbeddingBagCollection | FusedEmbeddingCollection) else None
    if fused is not None:  # whose sharder returns copies of the parameters
        weights = {name.split(".")[-2]: each for name, each in fused.named_parameters() if name.endswith(".weight")}
    is_processed = isinstance(module, FeatureProcessedEmbeddingBagCollection)
    yield TableCollection(
        path=path,
        configs=tuple(config for config in configs if config.name in weights),
        weights=weights,
        sharder=sharder,
        is_weighted=isinstance(inner, Bags) and inner.is_weighted() and not is_processed,
        is_sequence=not isinstance(inner, Bags),
        is_processed=is_processed,
        optimizer=None if fused is None else fused.optimizer_type(),
        id_maps=_id_maps(module),
    )


def _id_maps(module: nn.Module) -> Mapping[str, ManagedCollisionModule]:
    if not isinstance(module, _MANAGED_COLLISION):
        return {}
    return dict(module._managed_collision_collection._managed_collision_modules)  # noqa: SLF001 - it has no public name


def _tables_of(module: nn.Module) -> Bags | Rows | None:
    """Return the collection that a module is or wraps. None: it is another kind."""
    if isinstance(module, FeatureProcessedEmbeddingBagCollection):
        inner = module._embedding_bag_collection  # noqa: SLF001 - it has no public name
    elif isinstance(module, _MANAGED_COLLISION):
        inner = module._embedding_module  # noqa: SLF001 - it has no public name
    else:
        inner = module
    return inner if isinstance(inner, Bags | Rows) else None


def _place(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

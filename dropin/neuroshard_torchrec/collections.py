"""The embedding collections of a module, by path. Reads the module; plans nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from torchrec.distributed.planner.utils import sharder_name
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

from neuroshard_torchrec.errors import DropInError

Sharders = Sequence[ModuleSharder[nn.Module]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCollection:
    """One module whose tables a sharder spreads."""

    path: str
    """Within the module that is planned; empty: it is that module."""
    configs: tuple[EmbeddingBagConfig, ...]
    weights: Mapping[str, nn.Parameter]
    """By the table's name."""
    sharder: ModuleSharder[nn.Module]


def collections_of(module: nn.Module, sharders: Sharders | None = None) -> tuple[TableCollection, ...]:
    """Return the collections of pooled tables that the sharders spread, in the module's order.

    Args:
        module: on any device, meta included.
        sharders: as DistributedModelParallel gets them. None: TorchRec's default ones.

    Raises:
        DropInError: there is none, a collection holds sequences or has remapped ids, or two collections share a table.
    """
    by_type = {sharder_name(each.module_type): each for each in sharders or get_default_sharders()}
    found = tuple(_collections(module, "", by_type))
    if not found:
        raise DropInError(
            f"{type(module).__name__} has no EmbeddingBagCollection that one of the sharders takes "
            f"({', '.join(sorted(name.rpartition('.')[2] for name in by_type))}); "
            "give the module that holds the tables, and the sharders of DistributedModelParallel"
        )
    owners: dict[int, str] = {}
    for collection in found:
        for name, weight in collection.weights.items():
            place = _place(collection.path, name)
            if id(weight) in owners:
                raise DropInError(
                    f"table {place} is the same parameter as {owners[id(weight)]}; "
                    "TorchRec would shard it twice: give each collection its own tables"
                )
            owners[id(weight)] = place
    return found


def _collections(
    module: nn.Module, path: str, by_type: Mapping[str, ModuleSharder[nn.Module]]
) -> Iterator[TableCollection]:
    sharder = by_type.get(sharder_name(type(module)))
    if sharder is None:
        for name, child in module._modules.items():  # noqa: SLF001 - named_children leaves out a child's second name
            if child is not None:
                yield from _collections(child, _place(path, name), by_type)
        return
    inner = module._embedding_bag_collection if isinstance(module, FeatureProcessedEmbeddingBagCollection) else module  # noqa: SLF001 - it has no public name
    if not isinstance(inner, EmbeddingBagCollection):
        raise DropInError(
            f"{path or 'the module'} is a {type(module).__name__}; "
            "plans cover EmbeddingBagCollection, with or without feature processors: "
            "plan modules with other collections with TorchRec's planner"
        )
    weights = sharder.shardable_parameters(module)
    yield TableCollection(
        path=path,
        configs=tuple(config for config in inner.embedding_bag_configs() if config.name in weights),
        weights=weights,
        sharder=sharder,
    )


def _place(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

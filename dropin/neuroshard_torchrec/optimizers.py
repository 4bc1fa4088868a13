"""The optimizers that train a module's tables, as the module and its sharders declare them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.sharding.kernels import FBGEMM_OPTIMIZERS, Optimizer
from torch import nn

from neuroshard_torchrec.collections import TableCollection
from neuroshard_torchrec.errors import DropInError

Given = TypeVar("Given")

_BY_FBGEMM = {
    **{EmbOptimType[name]: optimizer for optimizer, name in FBGEMM_OPTIMIZERS.items()},
    EmbOptimType.SGD: Optimizer.SGD,
    EmbOptimType.ROWWISE_ADAGRAD: Optimizer.ROWWISE_ADAGRAD,
}
_BY_CLASS = {
    "SGD": Optimizer.SGD,
    "RowWiseAdagrad": Optimizer.ROWWISE_ADAGRAD,
    "Adagrad": Optimizer.ADAGRAD,
    "Adam": Optimizer.ADAM,
}
"""Classes that `apply_optimizer_in_backward` takes, of torch.optim and torchrec.optim."""

Place: TypeAlias = tuple[str, str]
"""A table: the path of its collection, and its name in it."""


def in_backward_optimizers(collections: Sequence[TableCollection]) -> Mapping[Place, Optimizer]:
    """Return the optimizers of `apply_optimizer_in_backward`, or of a fused collection, of the tables that have one.

    Raises:
        DropInError: one is not known here.
    """
    return {
        (each.path, name): _known(name, given[0].__name__, _BY_CLASS)
        for each in collections
        for name, weight in each.weights.items()
        if (given := _in_backward(each, weight))
    }


def optimizers_of(collections: Sequence[TableCollection]) -> Mapping[Place, Optimizer]:
    """Return the optimizers of all tables.

    A table's is that of its fused collection or of `apply_optimizer_in_backward`, else that of its sharder's
    fused_params, else FBGEMM's default, EXACT_SGD.

    Raises:
        DropInError: one is not known here.
    """
    fused = {
        (each.path, name): _known(name, _fused_optimizer(each), _BY_FBGEMM)
        for each in collections
        for name, weight in each.weights.items()
        if not _in_backward(each, weight)
    }
    return {**fused, **in_backward_optimizers(collections)}


def with_optimizers(tables: TableSet, optimizers: Mapping[str, Optimizer]) -> TableSet:
    """Return a table set with these optimizers, by the table's name, in the place of its own.

    Where all tables have one, the most frequent is the set's, and the others are their tables' own.
    """
    usual = Counter(optimizers.values()).most_common(1)[0][0] if len(optimizers) == len(tables.tables) else None
    own = {name: each for name, each in optimizers.items() if each is not usual}
    members = tuple(table.model_copy(update={"optimizer": own.get(table.name)}) for table in tables.tables)
    return tables.model_copy(update={"optimizer": usual, "tables": members})


def _in_backward(collection: TableCollection, weight: nn.Parameter) -> Sequence[type]:
    """Return a table's optimizers from its collection or `apply_optimizer_in_backward`. Empty: there are none."""
    return (collection.optimizer,) if collection.optimizer is not None else getattr(weight, "_optimizer_classes", ())


def _fused_optimizer(collection: TableCollection) -> EmbOptimType:
    return (getattr(collection.sharder, "fused_params", None) or {}).get("optimizer", EmbOptimType.EXACT_SGD)


def _known(name: str, given: Given, known: Mapping[Given, Optimizer]) -> Optimizer:
    """Return an optimizer that has a price. Raises DropInError."""
    if given not in known:
        raise DropInError(
            f"table {name!r} is trained by {given}, whose state is not priced; "
            f"hint: name the nearest of {', '.join(Optimizer)} as the planner's `optimizer`, "
            "or by `--set spec.model.embeddingOptimizer`"
        )
    return known[given]

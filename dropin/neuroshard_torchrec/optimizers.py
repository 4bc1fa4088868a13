"""The optimizer that trains a collection's tables, as the module and its sharders declare it."""

from collections.abc import Sequence
from dataclasses import replace

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.kernels import FBGEMM_OPTIMIZERS, Optimizer

from neuroshard_torchrec.collections import TableCollection
from neuroshard_torchrec.errors import DropInError

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

_BY_STATE = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD, Optimizer.ADAM)
"""By ascending bytes of state."""


def in_backward_optimizer(collections: Sequence[TableCollection]) -> Optimizer | None:
    """Return the optimizer of `apply_optimizer_in_backward`, of several that with most state; None: it has none.

    Raises:
        DropInError: one is not known here.
    """
    declared = [
        replace(each, weights=weights)
        for each in collections
        if (weights := {name: weight for name, weight in each.weights.items() if hasattr(weight, "_optimizer_classes")})
    ]
    return optimizers_of(declared)[-1] if declared else None


def optimizers_of(collections: Sequence[TableCollection]) -> tuple[Optimizer, ...]:
    """Return the optimizers of all tables, by ascending state.

    A table's is the one of `apply_optimizer_in_backward`, else that of its sharder's fused_params, else FBGEMM's
    default, EXACT_SGD.

    Raises:
        DropInError: one is not known here.
    """
    found: set[Optimizer] = set()
    for collection in collections:
        fused = (getattr(collection.sharder, "fused_params", None) or {}).get("optimizer", EmbOptimType.EXACT_SGD)
        for name, weight in collection.weights.items():
            classes = getattr(weight, "_optimizer_classes", ())
            known = [_BY_CLASS.get(each.__name__) for each in classes] or [_BY_FBGEMM.get(fused)]
            if known[0] is None:
                given = classes[0].__name__ if classes else fused
                raise DropInError(
                    f"table {name!r} is trained by {given}, whose state is not priced; "
                    f"name the nearest of {', '.join(Optimizer)} as the planner's `optimizer`, or `--optimizer`"
                )
            found.add(known[0])
    return tuple(each for each in _BY_STATE if each in found)

"""The constraints of a script's enumerator, where TorchRec's users often give them."""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import Enumerator, ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders

from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import Limits


def all_constraints(
    given: Limits | None, enumerator: Enumerator | None, module: nn.Module, sharders: Sharders | None
) -> Limits:
    """Return the constraints of a planner and of its enumerator together.

    An enumerator of another class than TorchRec's enumerates the module: the types and kernels that it leaves of each
    table are the table's.

    Raises:
        DropInError: the two say different things of a table.
    """
    own: Mapping[str, ParameterConstraints] = given or {}
    if enumerator is None:
        return own
    found: dict[str, ParameterConstraints] = dict(getattr(enumerator, "_constraints", None) or {})
    other = next((name for name in found if name in own and own[name] != found[name]), None)
    if other is not None:
        raise DropInError(
            f"constraints[{other!r}]: are not those of the enumerator; hint: give the constraints once, or equal ones"
        )
    found = {**own, **found}
    if type(enumerator) is EmbeddingEnumerator:
        return found
    left: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for option in enumerator.enumerate(module, list(get_default_sharders() if sharders is None else sharders)):
        types, kernels = left.setdefault(option.name, ({}, {}))
        types[option.sharding_type] = kernels[option.compute_kernel] = None
    for name, (types, kernels) in left.items():
        limit = found.get(name, ParameterConstraints())
        found[name] = replace(limit, sharding_types=list(types), compute_kernels=list(kernels))
    return found

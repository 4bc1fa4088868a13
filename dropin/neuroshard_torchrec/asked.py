"""What a script asks of each table: the constraints of its planner and those of its enumerator as one.

TorchRec has constraints by the table's name alone. An enumerator of a user's own class may tell tables of equal names
in two collections apart, and may leave a table out of the plan.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neuroshard_api.sharding.kinds import ShardingType
from torch import nn
from torchrec.distributed.planner.constants import MIN_CW_DIM
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import Enumerator, ParameterConstraints, ShardingOption
from torchrec.distributed.sharding_plan import get_default_sharders

from neuroshard_torchrec.arguments import COPIED
from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.errors import DropInError

Limits = Mapping[str, ParameterConstraints]
"""TorchRec's constraints, by the table's name."""

Place = tuple[str, str]
"""Path of a collection, and the table's name in it."""

_CUT = frozenset({"column_wise", "table_column_wise", "grid_shard"})
"""TorchRec's types whose options have shards of fewer columns than the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Constraints of all tables."""

    by_name: Limits = field(default_factory=dict)
    by_place: Mapping[Place, ParameterConstraints] | None = None
    """Of the tables for which an enumerator of a user's own class has options. None: there is none."""

    def of(self, place: Place) -> ParameterConstraints | None:
        """Return the constraints of a table. None: it has none."""
        found = self.by_name.get(place[1])
        return found if self.by_place is None else self.by_place.get(place, found)

    def leaves_out(self, place: Place, compute_device: str | None) -> bool:
        """Return whether the plan has no entry for a table, as TorchRec's would have none.

        That is so where its device_group is another device, or where the script's enumerator has no option of it.
        """
        limit = self.of(place)
        if limit is not None and compute_device is not None and limit.device_group not in {None, "", compute_device}:
            return True
        return self.by_place is not None and place not in self.by_place

    def others(self, names: Collection[str]) -> list[str]:
        """Return the names that constraints have and a module has not: frameworks share one mapping over models."""
        return [name for name in self.by_name if name not in names]


def asked_of(
    given: Limits | None, enumerator: Enumerator | None, module: nn.Module, sharders: Sharders | None
) -> Asked:
    """Return the constraints of a planner and of its enumerator together.

    An enumerator of another class than TorchRec's enumerates the module: the types and kernels that it leaves of each
    table are the table's.

    Raises:
        DropInError: the two say different things of a table.
    """
    own: Limits = given or {}
    if enumerator is None:
        return Asked(by_name=own)
    found: Limits = getattr(enumerator, "_constraints", None) or {}
    other = next((name for name in found if name in own and own[name] != found[name]), None)
    if other is not None:
        raise DropInError(
            f"constraints[{other!r}]: are not those of the enumerator; hint: give the constraints once, or equal ones"
        )
    asked = Asked(by_name={**own, **found})
    if type(enumerator) is EmbeddingEnumerator:
        return asked
    options: dict[Place, list[ShardingOption]] = {}
    used = list(get_default_sharders() if sharders is None else sharders)
    for option in enumerator.enumerate(module=module, sharders=used):  # by name, as TorchRec's planner calls it
        options.setdefault((option.path, option.name), []).append(option)
    return replace(asked, by_place={place: _left(asked.of(place), each) for place, each in options.items()})


def _left(limit: ParameterConstraints | None, options: Sequence[ShardingOption]) -> ParameterConstraints:
    """Return a table's constraints with the types and kernels of its options, and what these say of its kernel.

    That data_parallel is among others asks for nothing: a script has to update such tables itself.
    """
    types = dict.fromkeys(option.sharding_type for option in options)
    if len(types) > 1:
        types.pop(ShardingType.DATA_PARALLEL, None)
    kernels = dict.fromkeys(option.compute_kernel for option in options if option.sharding_type in types)
    first = options[0]
    widths = {int(shard.size[1]) for option in options if option.sharding_type in _CUT for shard in option.shards}
    found = limit or ParameterConstraints(pooling_factors=list(first.input_lengths))
    if widths and found.min_partition is None and (width := min(widths)) != min(MIN_CW_DIM, first.tensor.shape[1]):
        found = replace(found, min_partition=width)
    own = {name: value for name in COPIED if (value := getattr(first, name, None)) is not None}
    return replace(found, **{**own, "sharding_types": list(types), "compute_kernels": list(kernels)})

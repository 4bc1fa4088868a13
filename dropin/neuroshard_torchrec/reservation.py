"""TorchRec's storage reservation as memory of a request. Asks the reservation itself, whatever class it is of."""

from dataclasses import dataclass
from typing import Any

from torch import nn
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders

from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.errors import DropInError


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserved:
    """What a reservation keeps free of each device."""

    reserve_bytes: int
    """In addition to the inputs, which a plan's ledger counts, and to a dense part that the reservation counts."""
    dense_bytes: int | None
    """Of the dense part as the reservation counts it. None: it does not, and keeps memory free for that part too."""

    def beside(self, dense_bytes: int) -> int:
        """Return the memory that is kept free next to a dense part that is counted elsewhere."""
        return self.reserve_bytes if self.dense_bytes is not None else max(0, self.reserve_bytes - dense_bytes)


def reserved(
    reservation: Any,  # noqa: ANN401 - of TorchRec's classes, or like them
    topology: TorchRecTopology,
    module: nn.Module,
    sharders: Sharders | None,
    *,
    batch_size: int,
    constraints: dict[str, ParameterConstraints],
) -> Reserved:
    """Return the memory that a reservation leaves out of a topology's devices.

    HeuristicalStorageReservation and its like also take the dense part and inputs: the first is handed on as their
    count, and inputs are what the plan's ledger counts. FixedPercentageStorageReservation counts inputs and does not
    reserve them.

    Raises:
        DropInError: nothing is left.
    """
    before = [device.storage.hbm for device in topology.devices]
    try:
        after = reservation.reserve(
            topology=topology,
            batch_size=batch_size,
            module=module,
            sharders=list(get_default_sharders() if sharders is None else sharders),
            constraints=constraints,
        )
    except PlannerError as error:
        raise DropInError(f"storage_reservation: {' '.join(str(error).split())}", error.error_type) from error
    taken = max(one - other.storage.hbm for one, other in zip(before, after.devices, strict=True))
    dense = getattr(reservation, "_dense_storage", None)
    inputs = getattr(reservation, "_kjt_storage", None)
    dense_bytes = None if dense is None else dense.hbm
    if inputs is not None and not isinstance(reservation, FixedPercentageStorageReservation):
        taken -= inputs.hbm
    return Reserved(reserve_bytes=max(0, taken - (dense_bytes or 0)), dense_bytes=dense_bytes)

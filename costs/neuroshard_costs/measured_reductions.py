"""Times of the collectives that add up, where a profile measured them on the same devices. Measures nothing.

Between measured sizes logarithms are interpolated. Fewer bytes take as long as the least, more grow in proportion.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from neuroshard_api.documents.bundle import ReductionKind, ReductionTimes
from neuroshard_api.sharding.kinds import Family

from neuroshard_costs.arithmetic import exp, log
from neuroshard_costs.exchanges import Reduction
from neuroshard_costs.shards import FloatArray

_KINDS: Mapping[Family, tuple[ReductionKind | None, ReductionKind | None]] = {
    Family.ROWS: ("reduce_scatter", "all_gather"),
    Family.REPLICATED: (None, "all_reduce"),
}
"""Forward and backward collectives of the families that have one in each direction."""


def with_measured(
    simulated: FloatArray, num_bytes: FloatArray, reduction: Reduction, measured: Sequence[ReductionTimes]
) -> FloatArray:
    """Return the times [..., 2] with those that were measured in place of the simulator's.

    Args:
        simulated: [..., 2] forward and backward milliseconds.
        num_bytes: [...] see TransferModel.
        reduction: see TransferModel.
        measured: of any devices.
    """
    times = simulated.copy()
    for direction, kind in enumerate(_KINDS.get(reduction.family, ())):
        found = next((each for each in measured if each.kind == kind and each.is_of(reduction.topology)), None)
        if found is not None:
            times[..., direction] = np.where(num_bytes > 0, _interpolated(num_bytes, found), times[..., direction])
    return times


def _interpolated(num_bytes: FloatArray, measured: ReductionTimes) -> FloatArray:
    sizes = np.array(measured.num_bytes, dtype=np.float64)
    inside = np.clip(num_bytes, sizes[0], sizes[-1])
    logs = np.interp(log(inside), log(sizes), log(measured.times_ms))
    times: FloatArray = exp(logs) * np.maximum(num_bytes / sizes[-1], 1.0)
    return times

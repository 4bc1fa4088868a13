"""What a kernel call costs beyond its tables, from records of a table set called in three ways. Measures nothing.

=====================  =============================================================================================
of the device          two calls back to back, of half the tables each, less one call of all of them
of the host            what an idle device's call takes longer than the device is busy, joined as the cost model does:
                       alone^p = device^p + host^p
=====================  =============================================================================================
"""

from collections.abc import Callable, Sequence

import numpy as np
from neuroshard_api.documents.bundle import Launch
from neuroshard_api.documents.records import LaunchTimes, ProfileRecord

from neuroshard_costs.simulator.constants import OVERLAP_NORM

MIN_RECORDS = 3
"""Fewest records of calls: fewer have no median that one disturbed record leaves alone."""


def fitted_launch(records: Sequence[ProfileRecord]) -> Launch | None:
    """Return the medians over the records of calls. None: there are fewer than MIN_RECORDS."""
    measured = [record.launch_times for record in records if record.launch_times is not None]
    if len(measured) < MIN_RECORDS:
        return None
    host_ms = _medians(measured, _host_ms)
    source = next(record.source for record in records if record.launch_times is not None)
    return Launch(
        device_ms=_medians(measured, _device_ms), host_ms=host_ms, host_source=source if all(host_ms) else None
    )


def _device_ms(times: LaunchTimes, direction: int) -> float:
    return max(0.0, times.two_calls_ms[direction] - times.one_call_ms[direction])


def _host_ms(times: LaunchTimes, direction: int) -> float:
    if times.alone_ms is None:
        return 0.0
    alone, device = times.alone_ms[direction], times.one_call_ms[direction]
    return float(max(0.0, alone**OVERLAP_NORM - device**OVERLAP_NORM) ** (1 / OVERLAP_NORM))


def _medians(measured: Sequence[LaunchTimes], of: Callable[[LaunchTimes, int], float]) -> tuple[float, float]:
    forward, backward = (float(np.median([of(times, direction) for times in measured])) for direction in (0, 1))
    return forward, backward

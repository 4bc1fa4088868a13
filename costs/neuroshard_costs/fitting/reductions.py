"""Times of collectives of weights and gradients by bytes, from records of them. Measures nothing."""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.bundle import ReductionTimes
from neuroshard_api.documents.records import ProfileRecord, ReductionSample

MIN_SIZES = 3
"""Fewest sizes of a collective that are fitted: between fewer, the bend from latency to bandwidth is not seen."""

_SIZED = {"num_bytes"}


def fitted_reductions(records: Sequence[ProfileRecord]) -> tuple[ReductionTimes, ...]:
    """Return the times of each collective and group of devices with at least MIN_SIZES sizes, in the records' order.

    The time is that of the slowest device. Where one of more bytes took less, it is that one's: other work on the
    machine only adds, and one disturbed size must not raise its neighbors. Links that were measured again are those of
    the last record.
    """
    found: dict[tuple[str, int, int], list[tuple[ReductionSample, float]]] = {}
    for record in records:
        sample = record.reduction
        if record.is_usable and sample is not None:
            found.setdefault(sample.key, []).append((sample, max(record.device_ms)))
    fitted = (_fitted(measured) for measured in found.values())
    return tuple(each for each in fitted if len(each.num_bytes) >= MIN_SIZES)


def _fitted(measured: Sequence[tuple[ReductionSample, float]]) -> ReductionTimes:
    sample = measured[-1][0]
    num_bytes, place = np.unique([each.num_bytes for each, _ in measured], return_inverse=True)
    logs = np.bincount(place, np.log([time_ms for _, time_ms in measured])) / np.bincount(place)
    times_ms = np.exp(np.minimum.accumulate(logs[::-1])[::-1])
    return ReductionTimes(
        **sample.model_dump(exclude=_SIZED), num_bytes=tuple(num_bytes.tolist()), times_ms=tuple(times_ms.tolist())
    )

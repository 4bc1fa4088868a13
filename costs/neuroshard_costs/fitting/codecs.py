"""Times of codecs' passes and of their values, from records of what was encoded and decoded. Measures nothing."""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.bundle import CodecTimes
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.records import ProfileRecord

from neuroshard_costs.fitting.relative_squares import fixed_and_each

MIN_RECORDS = 4
"""Fewest records of a type that are fitted: two numbers from fewer would follow the noise."""

_Measured = tuple[int, float, float]


def fitted_codecs(records: Sequence[ProfileRecord]) -> tuple[CodecTimes, ...]:
    """Return the least relative squares of each type with at least MIN_RECORDS records, in the order of WireType."""
    found: dict[WireType, list[_Measured]] = {kind: [] for kind in WireType}
    for record in records:
        if record.is_usable and record.codec and record.forward_ms and record.backward_ms:
            found[record.codec.type].append((record.codec.num_values, record.forward_ms, record.backward_ms))
    return tuple(_fitted(kind, measured) for kind, measured in found.items() if len(measured) >= MIN_RECORDS)


def _fitted(kind: WireType, measured: Sequence[_Measured]) -> CodecTimes:
    columns = np.array(measured, dtype=np.float64)
    passes, values = zip(*(fixed_and_each(columns[:, 0], columns[:, direction]) for direction in (1, 2)), strict=True)
    return CodecTimes(type=kind, pass_ms=passes, value_ms=values)

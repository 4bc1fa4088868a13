"""Cost of a further collection of tables, from records of tables as one collection and as two. Measures nothing."""

from collections.abc import Callable, Sequence
from statistics import median

from neuroshard_api.documents.bundle import CollectionParts
from neuroshard_api.documents.records import ProfileRecord

MIN_RECORDS = 3
"""Fewest records that are fitted: the median of fewer is one measurement, or between two."""


def fitted_collection(records: Sequence[ProfileRecord]) -> CollectionParts | None:
    """Return the median over the records of two collections less one, of each part, and no less than 0.

    The tables and what they exchange are the same in both, so that the difference is of the calls alone. None: there
    are fewer than MIN_RECORDS records of collections.
    """
    measured = [each.collection_times for each in records if each.is_usable and each.collection_times]
    if len(measured) < MIN_RECORDS:
        return None

    def added(part: Callable[[CollectionParts], float]) -> float:
        return max(0.0, median(part(each.two) - part(each.one) for each in measured))

    return CollectionParts(
        indices_ms=added(lambda each: each.indices_ms),
        compute_ms=(added(lambda each: each.compute_ms[0]), added(lambda each: each.compute_ms[1])),
        exchange_ms=(added(lambda each: each.exchange_ms[0]), added(lambda each: each.exchange_ms[1])),
    )

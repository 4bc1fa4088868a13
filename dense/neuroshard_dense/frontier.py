"""The exact frontier of time over memory for units that choose one option each.

The memory of a choice is a sum over the units plus two maxima over the chosen options, of what collectives and of what
recomputing take for a moment; its time is a sum. Sums are merged unit by unit, and of all partial choices those that
another one beats in both are dropped. A maximum is not a sum: so one merge is made for each pair of limits of the two,
with the options that keep both.
The frontier is exact where there are at most MAX_LIMITS pairs of different values, and no merge has more than
MAX_POINTS points. Of more pairs, some are tried; of more points, the fastest of each of MAX_POINTS equal intervals of
memory stays.
"""

from collections.abc import Sequence

from neuroshard_dense.choice import Point, PricedOption
from neuroshard_dense.limit_search import LimitSearch


def frontier(units: Sequence[Sequence[PricedOption]], repeats: Sequence[int]) -> tuple[Point, ...]:
    """Return the frontier by memory, the least first; times fall along it.

    Args:
        units: options of each unit.
        repeats: equal units that each stands for; ``chosen`` of a point has all of them, one after the other.
    """
    if not units or not all(units):
        return ()
    return LimitSearch(units, repeats).points()

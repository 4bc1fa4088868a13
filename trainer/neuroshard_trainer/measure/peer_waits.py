"""The waiting for other ranks in the times of collectives. Needs no clock that ranks share.

    rank 0   computes ......|== exchange ==|
    rank 1   computes |---- waits ---------|== exchange ==|   the collective is one, and ends on both about together

The rank that comes last to a collective waits for nobody: its time is the exchange alone, and is the least of all
ranks. What others take longer is their waiting for it.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeVar

Key = TypeVar("Key")


def least_ms(ranks: Sequence[Mapping[int, Mapping[Key, float]]]) -> dict[Key, float]:
    """Return the exchange of each collective without waits: the median over steps of the least over ranks.

    Args:
        ranks: of each rank of a group, by step: milliseconds from coming to a collective to its end.

    Returns:
        Milliseconds, of collectives that all ranks timed in a step that all of them timed.
    """
    if not ranks:
        return {}
    first, *others = ranks
    found: dict[Key, list[float]] = {}
    for step, times in first.items():
        if all(step in other for other in others):
            for key, ms in times.items():
                if all(key in other[step] for other in others):
                    found.setdefault(key, []).append(min([ms, *(other[step][key] for other in others)]))
    return {key: median(least) for key, least in found.items()}

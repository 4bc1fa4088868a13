"""The median of the last values of a series, in order of the window's logarithm plus one move of memory per value."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence


class SlidingMedian:
    """A window of the last ``size`` values."""

    def __init__(self, size: int, values: Sequence[float] = ()) -> None:
        self._values: deque[float] = deque(values, maxlen=size)
        self._ordered = sorted(self._values)
        self._size = size

    def add(self, value: float) -> None:
        """Take a value in; the oldest leaves a full window."""
        if self.is_full:
            del self._ordered[bisect_left(self._ordered, self._values[0])]
        self._values.append(value)
        insort(self._ordered, value)

    def add_all(self, values: Sequence[float]) -> None:
        """Take several values in, one after the other."""
        self._values.extend(values)
        self._ordered = sorted(self._values)

    def num_from(self, value: float) -> int:
        """Return the number of values that are at least this one."""
        return len(self._ordered) - bisect_left(self._ordered, value)

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()
        self._ordered.clear()

    @property
    def is_full(self) -> bool:
        """Whether the window has all its values."""
        return len(self._values) == self._size

    @property
    def median(self) -> float:
        """Median of the values, of which there must be one."""
        ordered = self._ordered
        middle, is_odd = divmod(len(ordered), 2)
        return ordered[middle] if is_odd else (ordered[middle - 1] + ordered[middle]) / 2

    @property
    def values(self) -> tuple[float, ...]:
        """The values, oldest first."""
        return tuple(self._values)

"""The newest results of a function. A copy in another process begins without any, so that pickles stay small."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A function that remembers its newest results.

    Args:
        make: the function.
        capacity: results that are kept; the one that was used longest ago goes first.
    """

    def __init__(self, make: Callable[[Key], Value], *, capacity: int) -> None:
        self._make = make
        self._capacity = capacity
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __call__(self, key: Key) -> Value:
        """Return the function's result for a key."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = self._make(key)
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)
        return value

    def __reduce__(self) -> tuple[Callable[..., "Recent[Key, Value]"], tuple[Callable[[Key], Value], int]]:
        return _empty, (self._make, self._capacity)


def _empty(make: Callable[[Key], Value], capacity: int) -> Recent[Key, Value]:
    return Recent(make, capacity=capacity)

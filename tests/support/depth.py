"""How deep a test goes: a few cases in `make test`, many with `--long` in `make test-long`."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

_Depth = TypeVar("_Depth", int, str)
_is_long = False


def set_depth(*, is_long: bool) -> None:
    """Choose the depth of the tests that are collected after this call."""
    global _is_long  # noqa: PLW0603 - test modules ask at import, where no fixture is
    _is_long = is_long


def depth(usual: _Depth, long: _Depth) -> _Depth:
    """Return a number of cases, or cases. Mark the test `deep`, so that `make test-long` runs it again with more."""
    return long if _is_long else usual


def generated(usual: int, long: int, **others: Any) -> Callable[[Any], Any]:
    """Decorate a hypothesis test with its number of examples, other settings, and the mark `deep`."""

    def decorate(test: Any) -> Any:
        return pytest.mark.deep(settings(max_examples=depth(usual, long), **others)(test))

    return decorate

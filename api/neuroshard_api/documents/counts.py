"""Whole numbers of documents, and how large they may be."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field


def _whole(given: object) -> object:
    """Return a whole number that is written as a decimal one as an integer: `1000000.0`, and YAML's `1e6`."""
    if isinstance(given, str) and re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d{1,3}", given):
        given = float(given)
    return int(given) if isinstance(given, float) and given.is_integer() else given


Whole = BeforeValidator(_whole)
"""Takes a decimal number without a fraction for an integer."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""How many; anyone who computes with it holds integers in 64 bits."""
PositiveCount = Annotated[int, Field(ge=1, lt=2**63)]
"""How many, at least one."""
MAX_MILLISECONDS = 1e9
"""Longest time of a document, 11 days: sums of such times are whole microseconds in 64 bits."""
Milliseconds = Annotated[float, Field(ge=0, le=MAX_MILLISECONDS)]
"""A duration."""
MAX_MEMORY_BYTES = 2**53
"""Most memory of a device, 8 PiB: up to it integers are exact in floating point, in which solvers compute."""

"""Whole numbers of documents, and how large they may be."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""How many; whoever computes with it holds integers in 64 bits."""
PositiveCount = Annotated[int, Field(ge=1, lt=2**63)]
"""How many, at least one."""
MAX_MEMORY_BYTES = 2**53
"""Most memory of a device, 8 PiB: up to it integers are exact in floating point, in which solvers compute."""

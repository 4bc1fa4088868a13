"""What a plan decided where its request permitted more than one form: what it was compared with, and why."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.counts import Milliseconds
from neuroshard_api.documents.document import Value


class ChoiceName(StrEnum):
    """What may be chosen besides shards and devices, in the order in which it is.

    Layouts of the dense part, and types of its gradients, are in parts of a plan with what they were compared with.
    """

    MEANS_BY_ROWS = "means_by_rows"
    """Which collections of means alone are sharded by rows."""
    REPEATS = "repeats"
    """Which groups of features leave repeated lists out."""
    WIRE_TYPES = "wire_types"
    """Types in which pooled embeddings and their gradients travel."""
    STORED_TYPES = "stored_types"
    """Types of the tables."""
    DEVICE_GROUPS = "device_groups"
    """Groups of devices that each hold all tables."""
    SERVERS = "servers"
    """Tables on embedding servers."""


class Alternative(Value):
    """Another form than that of the best plan until then."""

    text: Annotated[str, Field(min_length=1)]
    total_ms: Milliseconds | None = None
    """Predicted cost of the best plan of that form. If unset: none was searched, or none was found."""
    bound_ms: Milliseconds | None = None
    """No plan of that form costs less. If unset: it was not bounded."""
    refusal: str | None = None
    """Why it was not chosen. If unset: it was."""


class PlanChoice(Value):
    """One decision."""

    name: ChoiceName
    before_ms: Milliseconds | None = None
    """Predicted cost of the best plan before it. If unset: none fitted."""
    alternatives: tuple[Alternative, ...] = ()
    """In the order in which they were tried."""

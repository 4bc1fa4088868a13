"""What would shorten a plan's step and was not permitted: the promise of each lever, and how to turn it on."""

from enum import StrEnum

from neuroshard_api.documents.counts import Milliseconds
from neuroshard_api.documents.document import Value


class LeverName(StrEnum):
    """Permissions of a request that a plan may gain by."""

    WIRE_TYPES = "wire_types"
    """Pooled embeddings and their gradients in a narrow type on the wire."""
    STORED_TYPES = "stored_types"
    """Tables in FP16."""
    REPEATS = "repeats"
    """Repeated lists left out of batches."""


class Lever(Value):
    """One permission that is expected to pay."""

    name: LeverName
    text: str
    """Its effect, as a phrase."""
    total_ms: Milliseconds
    """Predicted cost of the step with it."""
    saved_share: float
    """Of the plan's step."""
    option: str
    """Of `neuroshard plan`."""
    field: str
    """Of a job, with the value that turns it on."""

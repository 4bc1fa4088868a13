"""What would save time and was not asked for: the promise of each lever, and how to turn it on."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.counts import Milliseconds, PositiveCount
from neuroshard_api.documents.document import Value


class LeverName(StrEnum):
    """Permissions and settings of a request that a plan may gain by."""

    WIRE_TYPES = "wire_types"
    """Pooled embeddings and their gradients in a narrow type on the wire."""
    STORED_TYPES = "stored_types"
    """Tables in FP16."""
    REPEATS = "repeats"
    """Repeated lists left out of batches."""
    DEVICE_GROUPS = "device_groups"
    """Groups of devices that each hold all tables."""
    BATCH_SIZE = "batch_size"
    """Half or twice the samples of a device."""
    NODES = "nodes"
    """One node more or less, with as many samples on each device."""


class Lever(Value):
    """One permission or setting that is expected to pay."""

    name: LeverName
    text: Annotated[str, Field(max_length=512)]
    """Its effect, as a phrase."""
    total_ms: Milliseconds
    """Predicted cost of a step with it."""
    num_samples: PositiveCount | None = None
    """Samples of a step of all devices with it. If unset: as many as the plan's."""
    saved_share: Annotated[float, Field(ge=0, le=1)]
    """Of the plan's step; of its time per sample where ``num_samples`` is another number."""
    option: Annotated[str, Field(max_length=512)]
    """Of `neuroshard plan`."""
    field: Annotated[str, Field(max_length=512)]
    """Of a job, with the value that turns it on."""

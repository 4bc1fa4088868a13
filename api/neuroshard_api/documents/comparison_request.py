"""The request of `neuroshard compare-training` to a user's script: plans to train under, and a file for the result."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.counts import PositiveCount
from neuroshard_api.documents.document import Document

COMPARISON_VARIABLE = "NEUROSHARD_COMPARISON"
"""Environment variable that names the file of the request, in every process of the script."""


class ComparisonRequest(Document):
    """Plans that a script trains under in turns."""

    schema_name: ClassVar[str] = "comparison-request/v1"

    schema_version: Literal["comparison-request/v1"] = "comparison-request/v1"
    plans: Annotated[dict[str, str], Field(min_length=2)]
    """Files of the plans by the names that the result gives them; the first is the reference."""
    rounds: Annotated[PositiveCount, Field(ge=2)]
    """Counted ones."""
    steps_per_round: PositiveCount
    """Under each plan."""
    result: str
    """File for the comparison, which rank 0 writes."""

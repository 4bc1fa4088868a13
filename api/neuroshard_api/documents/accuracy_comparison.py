"""Pairs of trainings with and without narrow types: what the types do to the predictions of held-out samples."""

from math import sqrt
from statistics import mean, stdev
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.counts import Count, PositiveCount
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.documents.gradient_exchange import GradientExchange


class Accuracy(Value):
    """Predictions of held-out samples after a training; they are made with exact exchange."""

    normalized_entropy: Annotated[float, Field(ge=0)]
    """Cross entropy over that of the mean label: lower is better."""
    auc: Annotated[float, Field(ge=0, le=1)] | None = None
    """If unset: all samples have the same label."""


class AccuracyPair(Value):
    """Two trainings of equal weights and batches."""

    seed: Count
    exact: Accuracy
    narrow: Accuracy
    suspended: bool = False
    """Whether a guard turned narrow types off on the way."""

    @property
    def change(self) -> float:
        """Change of the normalized entropy by narrow types, as a share of the exact one; below 0 they lowered it."""
        return self.narrow.normalized_entropy / self.exact.normalized_entropy - 1


class AccuracyComparison(Document):
    """Pairs of trainings under a plan, with its narrow types and without them."""

    schema_name: ClassVar[str] = "accuracy-comparison/v1"

    schema_version: Literal["accuracy-comparison/v1"] = "accuracy-comparison/v1"
    device: str
    """What each rank computed on."""
    world_size: PositiveCount
    steps: PositiveCount
    """Of each training."""
    wire: WireTypes | None = None
    """Of pooled embeddings and their gradients. If unset: exact."""
    gradients: GradientExchange | None = None
    """Of the replicated dense part. If unset: exact."""
    pairs: Annotated[tuple[AccuracyPair, ...], Field(min_length=1)]
    """One of each seed."""

    @property
    def mean_change(self) -> float:
        """Mean of the pairs' changes."""
        return mean(pair.change for pair in self.pairs)

    @property
    def standard_error(self) -> float | None:
        """Standard deviation of the pairs' changes over the root of their number. None: there is one pair."""
        changes = [pair.change for pair in self.pairs]
        return stdev(changes) / sqrt(len(changes)) if len(changes) > 1 else None

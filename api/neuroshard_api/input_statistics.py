"""What a trainer counted in its batches: how often each feature is looked up, and how much of it repeats."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.counts import Count, PositiveCount
from neuroshard_api.document import Document, Value
from neuroshard_api.tables import ReuseHistogram


class FeatureStatistics(Value):
    """Means over the sampled batches of one rank."""

    feature: Annotated[str, Field(min_length=1, max_length=128)]
    lookups_per_sample: Annotated[float, Field(ge=0)]
    """Pooling factor."""
    distinct_rows_per_lookup: Annotated[float, Field(ge=0, le=1)]
    """Distinct rows of a batch over its lookups; 1 without lookups."""
    distinct_lists_per_sample: Annotated[float, Field(ge=0, le=1)]
    """Distinct lists of lookups over the samples of a batch: how much duplication there is."""
    reuse_histogram: ReuseHistogram | None = None
    """Share of the distinct rows by hits per row in one batch, 17 bins. If unset: not counted."""


class InputStatistics(Document):
    """Statistics of a trainer's inputs over some of its batches."""

    schema_name: ClassVar[str] = "input-statistics/v1"

    schema_version: Literal["input-statistics/v1"] = "input-statistics/v1"
    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the plan file that was trained under."""
    first_step: Count
    """Step of the first sampled batch."""
    last_step: Count
    num_batches: PositiveCount
    """Sampled batches."""
    batch_size: PositiveCount
    """Samples of a sampled batch: distinct rows and histograms depend on it."""
    features: Annotated[tuple[FeatureStatistics, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [each.feature for each in self.features]
        repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if repeated:
            raise ValueError(f"features[].feature: each feature must be there once, found {repeated[0]!r} again")
        if self.last_step < self.first_step:
            raise ValueError(f"last_step: must be at least first_step {self.first_step}, found {self.last_step}")
        return self

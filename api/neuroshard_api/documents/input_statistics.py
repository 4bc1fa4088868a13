"""What a trainer counted in its batches: how often each feature is looked up, and how much of it repeats."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.counts import Count, PositiveCount
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.run_document import RunDocument
from neuroshard_api.documents.tables import ReuseHistogram

FeatureName = Annotated[str, Field(min_length=1, max_length=128)]


class FeatureStatistics(Value):
    """Means over the sampled batches of rank 0."""

    feature: FeatureName
    lookups_per_sample: Annotated[float, Field(ge=0)]
    """Pooling factor."""
    distinct_rows_per_lookup: Annotated[float, Field(ge=0, le=1)]
    """Distinct rows of the counted samples of a batch over their lookups; 1 without lookups."""
    distinct_lists_per_sample: Annotated[float, Field(ge=0, le=1)]
    """Distinct lists of lookups over the counted samples: how much duplication there is."""
    reuse_histogram: ReuseHistogram | None = None
    """Share of the distinct rows by hits per row in one batch, 17 bins. If unset: not counted."""


class InputStatistics(RunDocument):
    """Statistics of a trainer's inputs over some of its batches."""

    schema_name: ClassVar[str] = "input-statistics/v1"

    schema_version: Literal["input-statistics/v1"] = "input-statistics/v1"
    first_step: Count
    """Step of the first sampled batch."""
    last_step: Count
    num_batches: PositiveCount
    """Sampled batches."""
    batch_size: PositiveCount
    """Samples of a sampled batch; reuse histograms are those of that many."""
    counted_samples: PositiveCount
    """Samples of each batch in which distinct rows and lists were counted, the first ones: both depend on it."""
    changed_features: tuple[FeatureName, ...] = ()
    """Features whose statistics are lastingly others than those of the run's first sampled batches."""
    without_repeats: Annotated[tuple[FeatureName, ...], Field(min_length=1)] | None = None
    """Features whose repeated lists the plan left out of the batches: their lookups and reuse are those of distinct
    lists alone. If unset: none."""
    features: Annotated[tuple[FeatureStatistics, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [each.feature for each in self.features]
        repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if repeated:
            raise ValueError(f"features[].feature: each feature must be there once, found {repeated[0]!r} again")
        unknown = sorted(set(self.changed_features) - set(names))
        if unknown:
            raise ValueError(f"changed_features: must be among the features, found {unknown[0]!r}")
        if self.counted_samples > self.batch_size:
            raise ValueError(
                f"counted_samples: must be at most batch_size {self.batch_size}, found {self.counted_samples}"
            )
        if self.last_step < self.first_step:
            raise ValueError(f"last_step: must be at least first_step {self.first_step}, found {self.last_step}")
        return self

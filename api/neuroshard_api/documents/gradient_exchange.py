"""How gradients of the replicated dense part travel: the types, what a plan may choose from, and what it chose.

type        what a device sends for n parameters                    what is left over
FP16, BF16  an all-reduce of 2 n bytes                              nothing: rounded
Threshold   an all-gather of the largest entries, 4 bytes each      carried into the next step

Gradients of embedding tables have nothing to do with it: their kernels apply them where they arise.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.counts import Milliseconds, PositiveCount
from neuroshard_api.documents.document import Value


class GradientType(StrEnum):
    """How gradients travel."""

    FP32 = "FP32"
    """As they are."""
    FP16 = "FP16"
    """torch's fp16_compress_hook: added up in FP16."""
    BF16 = "BF16"
    """torch's bf16_compress_hook: added up in BF16."""
    THRESHOLD = "Threshold"
    """The largest entries alone."""

    @property
    def carries(self) -> bool:
        """Whether what was not sent is added to the next step's gradients."""
        return self is GradientType.THRESHOLD


CAPACITY_OVER_KEPT = 1.25
"""Entries that Threshold has room for, over those that it is to keep."""
LEAST_OVER_KEPT = 0.5
"""Entries that a threshold keeps, over those that it is to keep, below which it is replaced."""
SPARSE_ENTRY_BYTES = 4
"""Of a kept entry: its position in a block of 65,536, and its value in BF16."""


class GradientSettings(Value):
    """Settings of Threshold."""

    keep_percent: Annotated[float, Field(gt=0, le=50)] = 5.0
    """Share of the entries that is sent, in percent. There is room for a quarter more."""
    refresh_steps: PositiveCount = 2000
    """Steps after which the threshold is computed again."""


class GradientExchange(GradientSettings):
    """How a plan's gradients travel."""

    type: GradientType = GradientType.FP32


class GradientChoices(GradientSettings):
    """Types that a plan may choose from. FP32 is always among them."""

    types: tuple[GradientType, ...] = ()
    least_gain_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """Share of the predicted step, dense part included, that a type must save to be chosen. If unset: 2, or the
    error of the cost models if that is more."""

    @property
    def narrow(self) -> Sequence[GradientType]:
        """All permitted types but FP32, each once."""
        return tuple(each for each in dict.fromkeys(self.types) if each is not GradientType.FP32)

    def exchange(self, kind: GradientType) -> GradientExchange:
        """Return one of the types with the settings."""
        return GradientExchange(type=kind, **self.model_dump(include=set(GradientSettings.model_fields)))


class GradientAlternative(Value):
    """What a type would make of the dense part's gradients."""

    type: GradientType
    exposed_ms: Milliseconds | None = None
    """Collectives that compute does not hide. If unset: the type cannot be used."""
    codec_ms: Milliseconds | None = None
    """Passes over the gradients before and after the collectives."""
    saved_ms: float | None = None
    """Of the step; below 0 it would take longer."""
    refusal: str | None = None
    """Why it was not chosen. If unset: it was."""


class GradientDecision(Value):
    """How a plan's gradients travel, and what it decided against. Accuracy is not predicted."""

    chosen: GradientType
    exact_exposed_ms: Milliseconds | None = None
    """Exposed collectives of the gradients as they are. If unset: the dense part is not known."""
    alternatives: tuple[GradientAlternative, ...] = ()
    """All permitted types, in the order of the request."""
    reason: str | None = None
    """Why gradients travel as they are. If unset: they do not."""

    @model_validator(mode="after")
    def _reasoned(self) -> Self:
        if (self.chosen is GradientType.FP32) == (self.reason is None):
            found = "is missing" if self.reason is None else "is for plans whose gradients travel as they are"
            raise ValueError(f"reason: {found}; chosen is {self.chosen}")
        return self

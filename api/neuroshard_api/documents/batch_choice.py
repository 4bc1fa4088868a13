"""The samples per device and step, where a plan chooses them: what it may choose from, and what it chose.

A larger batch costs less per sample until the devices are busy, and needs more memory. It also changes the training, so
that of batches that are nearly as fast the smallest is taken.
"""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.document import Document, Value, read_data

SamplesPerDevice = Annotated[int, Field(ge=1, le=2**24)]
_Profiles = Annotated[tuple[DenseProfile, ...], Field(min_length=1, max_length=32)]


class DenseProfiles(Document):
    """The dense part of one model, counted at several batch sizes."""

    schema_name: ClassVar[str] = "dense-profiles/v1"

    schema_version: Literal["dense-profiles/v1"] = "dense-profiles/v1"
    profiles: _Profiles
    """In ascending order of the batch size."""


class BatchChoices(Value):
    """What a plan may choose for the samples per device and step."""

    sizes: Annotated[tuple[SamplesPerDevice, ...], Field(min_length=1, max_length=32)]
    """In ascending order."""
    dense: _Profiles | None = None
    """The dense part counted at each of them. If unset: it was not counted, and nothing can be planned."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("sizes: must ascend; hint: sort them, and give each once")
        if self.dense is not None and [each.batch_size_per_device for each in self.dense] != list(self.sizes):
            raise ValueError("dense: must have a profile for each of sizes, in their order; hint: count them again")
        return self


class TriedBatch(Value):
    """One batch size that was tried."""

    samples_per_device: SamplesPerDevice
    samples_per_second: Annotated[float, Field(ge=0)] | None = None
    """Of all devices, by the predicted whole step of the first plan, before it takes further forms. If unset: no plan
    fits."""
    problem: str | None = None
    """Why no plan fits. If unset: one does."""


class BatchDecision(Value):
    """The samples per device that were chosen: those of the plan's request."""

    tried: Annotated[tuple[TriedBatch, ...], Field(min_length=1)]
    """In ascending order."""


def read_dense(path: Path) -> tuple[DenseProfile, ...]:
    """Return the profiles of a file of one or of several. Raises DocumentError."""
    data = read_data(path)
    if DenseProfiles.is_named_by(data):
        return DenseProfiles.from_data(data, where=str(path)).profiles
    return (DenseProfile.from_data(data, where=str(path)),)

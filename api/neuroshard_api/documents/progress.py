"""How far a training run is."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.counts import Count, PositiveCount
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.documents.gradient_exchange import GradientExchange


class GuardState(StrEnum):
    """Whether pooled embeddings, or gradients, travel in narrow types."""

    NARROW = "Narrow"
    SUSPENDED = "Suspended"


CHECKS_TO_SUSPEND = 3
"""Checks in a row above the maximum, of which the last one suspends."""


class GuardRecord(Value):
    """What the guard of narrow types found so far."""

    types: WireTypes | GradientExchange | None = None
    """Types that are checked. If unset: not known."""
    maximum_percent: Annotated[float, Field(ge=0)] | None = None
    """Maximum of ``change_percent``. If unset: not known."""
    state: GuardState = GuardState.NARROW
    since_step: Count = 0
    """Step after which the state began."""
    num_checks: Count = 0
    change_percent: Annotated[float, Field(ge=0)] | None = None
    """Relative change of the held-out loss in the last check, without its sign; of gradients, what a step lost of their
    norm. If unset: there was none, or it was not finite."""
    exceeded_in_a_row: Count = 0
    """Last checks whose change was above the maximum."""
    checks_suspended: Count = 0
    """Checks left out since narrow types were suspended."""
    times_suspended: Count = 0


class TrainingProgress(Document):
    """``progress.json`` of a run directory, written by rank 0 whole and again and again."""

    schema_name: ClassVar[str] = "training-progress/v1"

    schema_version: Literal["training-progress/v1"] = "training-progress/v1"
    run_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """torchrun's id of the run that wrote it; a restart on the same folder has another one. If unset: not known."""
    step: Count
    """Steps done, those before a restart included."""
    num_steps: PositiveCount | None = None
    """Steps of the whole training. None: not known before its end."""
    remaining_seconds: Annotated[float, Field(ge=0)] | None = None
    """Time to the end at the present speed. None: not known."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Latest numbers by name: ``loss``, and after an evaluation ``auc`` and ``normalized_entropy``."""
    checkpoint_step: Count | None = None
    """Steps that the newest whole checkpoint holds. None: there is none."""
    guard: GuardRecord | None = None
    """Of narrow types. If unset: everything travels as it is."""
    gradient_guard: GuardRecord | None = None
    """Of the dense part's gradients. If unset: they travel as they are."""
    checkpoint_path: str | None = None
    """Its folder."""
    checkpoint_stop_ms: Annotated[float, Field(ge=0)] | None = None
    """Time that training stood still for the last checkpoint: for the writing, or, in the background, for the copy to
    the host's memory and for the one before. None: none was begun."""

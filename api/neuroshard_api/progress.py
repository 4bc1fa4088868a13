"""How far a training run is."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.counts import Count, PositiveCount
from neuroshard_api.document import Document


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
    checkpoint_path: str | None = None
    """Where it lies."""

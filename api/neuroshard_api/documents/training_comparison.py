"""Training under several plans in turns: what each took, and how far their losses differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.counts import Count, PositiveCount
from neuroshard_api.documents.document import Document, Value

CONFIDENCE = 0.95
"""Of every interval."""

Times = tuple[Annotated[float, Field(ge=0)], ...]
Interval = tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]


class PlanTimes(Value):
    """What training under one plan took."""

    step_ms: Times
    """Of each round: the mean step on the slowest rank."""
    embedding_ms: Times | None = None
    """Of each round: lookups, exchanges, and updates of the tables in the mean step, waiting included, on the rank with
    most. None: not timed."""
    steps_per_second: float
    interval: Interval
    """Of the steps per second, with the confidence of the comparison."""
    speedup: float
    """Steps per second over those of the first plan; the geometric mean over rounds."""
    speedup_interval: Interval
    """From the differences within rounds, which leave out what all plans share."""
    final_loss: float
    """Mean of all ranks in the last step."""
    largest_loss_difference: float
    """To the first plan's loss in the same step, over all steps."""


class PredictedMemory(Value):
    """The memory of the device that needs most, as the plans' ledgers have it."""

    device: Count
    """The same index in all plans."""
    plan_bytes: dict[str, Count]
    """Of each plan alone, the reserve included."""
    total_bytes: Count
    """Of all plans together: their sum, with the largest of their reserves once."""
    capacity_bytes: PositiveCount
    """The least that a plan was made for."""


class TrainingComparison(Document):
    """Training under several plans in turns."""

    schema_name: ClassVar[str] = "training-comparison/v1"

    schema_version: Literal["training-comparison/v1"] = "training-comparison/v1"
    device: str
    """What each rank computed on."""
    world_size: PositiveCount
    rounds: PositiveCount
    """Counted ones; one more came before them, to warm up."""
    steps_per_round: PositiveCount
    plans: dict[str, PlanTimes]
    """By the plan's name; the first is what the others are compared with."""
    memory: PredictedMemory | None = None
    """What the models of all plans together need, as they are on the devices at once. None: some plan's is unknown."""
    peak_memory_bytes: Count | None = None
    """What torch's allocator held at most on a rank, with the models of all plans. None: not measured, as on a CPU."""


def file_names(files: Sequence[Path]) -> list[str]:
    """Return a name for the plan of each file: the file's stem where all differ, else its path."""
    short = [file.stem for file in files]
    return short if len(set(short)) == len(short) else [str(file) for file in files]

"""How far a training run is, and how it came there."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, TypeVar

from pydantic import Field

from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.counts import Count, PositiveCount
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.documents.finding import MAX_FINDINGS, DataFinding
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


T = TypeVar("T", float, str)
MAX_POINTS: Final = 200
"""Points of each curve: more are not seen in a drawing, and the document travels in a ConfigMap."""
MAX_NUMBERS: Final = 3200
"""Numbers of a curve's points together: variants have some each."""
MAX_STARTS: Final = 50


class ProgressPoint(Value):
    """Numbers after a step."""

    step: Count
    samples: Count
    """Training samples used until then, over all epochs."""
    time: datetime
    metrics: dict[str, float]
    """By name, as in `TrainingProgress.metrics`: the mean loss of the steps before, or those of an evaluation."""


class TrainingStart(Value):
    """A start of the training's processes."""

    time: datetime
    step: Count
    """Steps done before."""
    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Plan that they train under."""


def with_point(points: Sequence[ProgressPoint], point: ProgressPoint) -> tuple[ProgressPoint, ...]:
    """Return points with a further one; of too many every second is left out, the last one never.

    Too many are more than ``MAX_POINTS``, or more than ``MAX_NUMBERS`` numbers.
    """
    found = (*points, point)
    most = min(MAX_POINTS, MAX_NUMBERS // max(1, len(point.metrics)))
    return found if len(found) <= most else found[-1::-2][::-1]


DIVERGED: Final = "diverged_at_step"
"""Name of a variant's number: the step after which its loss was found not to be finite."""


def of_model(metrics: Mapping[str, T]) -> dict[str, T]:
    """Return the metrics of the model; of variants those of the best one, without its name."""
    return {name: value for name, value in metrics.items() if "/" not in name}


def by_variant(metrics: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return the metrics of each variant, the lowest normalized entropy first, and those that diverged last."""
    found: dict[str, dict[str, T]] = {}
    for name, value in metrics.items():
        variant, slash, own = name.partition("/")
        if slash:
            found.setdefault(variant, {})[own] = value

    def place(name: str) -> float:
        value = found[name].get("normalized_entropy", found[name].get("loss"))
        try:
            return math.inf if value is None or DIVERGED in found[name] else float(value)
        except ValueError:  # a status is text
            return math.inf

    return {name: found[name] for name in sorted(found, key=place)}


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
    """Latest numbers by name: ``loss``, and after an evaluation ``auc`` and ``normalized_entropy``. Of variants, those
    of the best one, and ``VARIANT/loss`` and so on of each."""
    losses: tuple[ProgressPoint, ...] = ()
    """The training loss as it went, thinned; a restart continues it from its checkpoint's step."""
    evaluations: tuple[ProgressPoint, ...] = ()
    """Metrics of held-out samples, likewise."""
    starts: tuple[TrainingStart, ...] = ()
    """Starts of the processes, the newest last: restarts, and changes of plan."""
    diverged: dict[str, Count] | None = None
    """Step after which the loss of a variant was found not to be finite, by its name. Its metrics end there. If unset:
    none has, or there are no variants."""
    findings: Annotated[tuple[DataFinding, ...], Field(max_length=MAX_FINDINGS)] | None = None
    """What is or was wrong with the loss or the data, the newest last. If unset: nothing was found."""
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

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics, and the step of each variant that diverged."""
        return self.metrics | {f"{name}/{DIVERGED}": float(step) for name, step in (self.diverged or {}).items()}

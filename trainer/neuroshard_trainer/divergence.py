"""The cause of a loss that explodes: its first step, and a value of the data that is far beyond the usual ones.

The batches of that step and of the one before are made again: a value that is too large for the forward pass shows in
the loss of its own step, one that is too large for the backward pass alone in that of the next one. They are
compared with batches before them. The search costs nothing until there is something to find.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch.distributed as dist
from neuroshard_api.documents.finding import DataFinding, FindingKind
from numpy.typing import NDArray

from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.data_columns import DataColumns
from neuroshard_trainer.ranks.agreement import gathered
from neuroshard_trainer.schedule import Schedule

LARGE_LOSS: Final = 100.0
"""Nats: of a model that knows nothing it is below 1, and no model recovers from it."""
UNUSUAL: Final = 1000.0
"""Times the largest usual value, at least 1, that a value must be to be named."""
USUAL_STEPS: Final = 3
"""Steps before the examined ones whose values are usual."""
EXAMINED_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class _Outlier:
    """The most unusual value of a rank."""

    ratio: float
    column: str
    value: float
    usual: float | None
    step: int
    place: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """What is known of a loss that exploded."""

    finding: DataFinding
    place: str | None
    """Of the value that is named. None: none is."""


def divergence_of(
    kind: FindingKind,
    losses: Sequence[float],
    *,
    first_step: int,
    data: object,
    columns: DataColumns,
    schedule: Schedule,
    group: dist.ProcessGroup | None,
) -> Divergence | None:
    """Return the cause of a loss that is not finite or above ``LARGE_LOSS``; None where no rank's is.

    All ranks must call this.

    Args:
        kind: of the finding.
        losses: of this rank's last steps.
        first_step: of the first of them.
        data: makes this rank's batches. One that cannot make a batch again is not examined.
        columns: names of the dense ones.
        schedule: of the steps.
        group: of all ranks.
    """
    wrong = np.flatnonzero(~(np.asarray(losses, dtype=np.float64) < LARGE_LOSS))
    steps = gathered(first_step + int(wrong[0]) if wrong.size else None, group)
    begun = min((each for each in steps if each is not None), default=None)
    if begun is None:
        return None
    outlier = _outlier(data, columns, schedule, begun) if isinstance(data, BatchMaker) and columns.dense else None
    outliers = [each for each in gathered(outlier, group) if each is not None]
    found = max(outliers, key=lambda each: each.ratio, default=None)
    first = begun if found is None else found.step
    finding = DataFinding(
        kind=kind,
        column=None if found is None else found.column,
        first_step=first,
        last_step=begun,
        first_sample=schedule.position(first),
        last_sample=schedule.position(begun + 1) - 1,
        before=None if found is None else found.usual,
        now=None if found is None else found.value,
    )
    return Divergence(finding, None if found is None else found.place)


def _outlier(data: BatchMaker, columns: DataColumns, schedule: Schedule, begun: int) -> _Outlier | None:
    """Return this rank's most unusual value of the first step with such a loss, and of the one before."""
    examined = range(max(schedule.first_step, begun + 1 - EXAMINED_STEPS), begun + 1)
    before = range(max(schedule.first_step, examined.start - USUAL_STEPS), examined.start)
    usual = np.full(len(columns.dense), 1.0 if before else UNUSUAL)  # nothing is known before the first step
    for step in before:
        usual = np.maximum(usual, _largest(data, schedule, step).max(axis=0))
    found: list[_Outlier] = []
    for step in examined:
        values = _largest(data, schedule, step)
        sample, column = (int(at) for at in np.unravel_index(int((values / usual).argmax()), values.shape))
        ratio = float(values[sample, column] / usual[column])
        if ratio >= UNUSUAL:
            found.append(
                _Outlier(
                    ratio=ratio,
                    column=columns.dense[column],
                    value=float(values[sample, column]),
                    usual=float(usual[column]) if before else None,
                    step=step,
                    place=data.place(schedule.position(step), sample),
                )
            )
    return max(found, key=lambda each: each.ratio, default=None)


def _largest(data: BatchMaker, schedule: Schedule, step: int) -> NDArray[np.float64]:
    """Return [samples, columns] a batch's dense values without their signs."""
    values: NDArray[np.float64] = np.abs(data.training(schedule.position(step)).dense.numpy().astype(np.float64))
    return values

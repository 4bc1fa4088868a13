"""The tables of `deduplication_choices`: choices, savings, and parts of steps, next to what was predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
from neuroshard_costs.shards import FloatArray

from benchmarks.forms import CLOCK, FORMS, PARTS, PLAIN, PROCESSOR, STEP, FormTimes, StepParts, embedding_ms

CLOSE = 1.05
"""A choice is right where its time is at most this many times the best form's."""
WANTED_RIGHT = 10
WITHIN = 0.3
"""Of the measured saving, within which the predicted one is to be."""
NAMES = (PLAIN, *map(str, FORMS))


class Job(Protocol):
    """A synthetic job."""

    @property
    def factor(self) -> float:
        """Samples over distinct ones of the user lists, in endless sessions."""

    @property
    def pooling(self) -> float:
        """Lookups of a user list."""

    @property
    def batch_size(self) -> int:
        """Samples of each process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A job that was planned and trained."""

    job: Job
    factor: float
    """Measured in the batches."""
    planned_factor: float
    choice: str
    """The planner's form."""
    times: dict[str, FormTimes]
    """By clock or processor."""
    predicted: dict[str, StepParts]
    """By form."""

    def ratio(self, form: str) -> float:
        """Return the time of whole steps over that on all lists, by the clock."""
        return float(np.median(self._steps(form) / self._steps(PLAIN)))

    def embedding_ratio(self, form: str, by: str) -> float:
        """Return the time of the embedding part over that on all lists."""
        return float(np.median(self.embedding(form, by) / self.embedding(PLAIN, by)))

    def saved_ms(self, form: str, by: str) -> float:
        """Return the measured saving of the embedding part, next to all lists."""
        return float(np.median(self.embedding(PLAIN, by) - self.embedding(form, by)))

    def predicted_saved_ms(self, form: str) -> float:
        """Return the predicted saving."""
        return embedding_ms(self.predicted[PLAIN]) - embedding_ms(self.predicted[form])

    @property
    def is_right(self) -> bool:
        """Whether the choice is close to the best form."""
        ratios = {form: self.ratio(form) for form in NAMES}
        return ratios[self.choice] <= CLOSE * min(ratios.values())

    def is_near(self, form: str, by: str) -> bool:
        """Return whether the predicted saving is near the measured one."""
        saved_ms = self.saved_ms(form, by)
        return abs(self.predicted_saved_ms(form) - saved_ms) <= WITHIN * abs(saved_ms)

    def part_ms(self, form: str, name: str, by: str) -> float:
        """Return the median time of a part."""
        return median(step[name] for step in self.times[by][form])

    def embedding(self, form: str, by: str) -> FloatArray:
        """Return [steps] the time of the embedding part."""
        return np.array([embedding_ms(step) for step in self.times[by][form]])

    def _steps(self, form: str) -> FloatArray:
        return np.array([step[STEP] for step in self.times[CLOCK][form]])

    @property
    def cells(self) -> list[str]:
        """Columns that begin the rows of a job."""
        return [f"{number:,g}" for number in (self.job.factor, self.job.pooling, self.job.batch_size)]


def report(jobs: Sequence[Measured]) -> list[str]:
    """Return the lines of the result below its head."""
    return [*choice_lines(jobs), "", *saving_lines(jobs), "", *part_lines(jobs)]


def choice_lines(jobs: Sequence[Measured]) -> list[str]:
    """Return the table of choices."""
    rows = []
    for each in jobs:
        cells = [
            *each.cells,
            f"{each.planned_factor:.2f}",
            f"{each.factor:.2f}",
            f"{each.part_ms(PLAIN, STEP, CLOCK):.1f}",
            *(f"{each.ratio(form):.2f}" for form in NAMES[1:]),
            *(f"{each.embedding_ratio(form, by):.2f}" for by in (CLOCK, PROCESSOR) for form in NAMES[1:]),
            each.choice,
            "yes" if each.is_right else "no",
        ]
        rows.append(_row(cells))
    num_right = sum(each.is_right for each in jobs)
    return [
        "## Choices",
        "",
        *_table(
            "factor aimed at, lookups, samples, factor planned, measured, step on all lists (ms), step first_sample, "
            "step grouped, embedding part first_sample, embedding part grouped, the same of processor time "
            "first_sample, grouped, planner's choice, right"
        ),
        *rows,
        "",
        (
            f"Right (a step of at most {CLOSE} times the fastest of the three): {num_right} of {len(jobs)}, at least "
            f"{WANTED_RIGHT} wanted."
        ),
    ]


def saving_lines(jobs: Sequence[Measured]) -> list[str]:
    """Return the table of savings, of both forms."""
    rows = []
    for each in jobs:
        for form in NAMES[1:]:
            saved = [each.saved_ms(form, by) for by in (CLOCK, PROCESSOR)]
            predicted = each.predicted_saved_ms(form)
            cells = [
                *each.cells,
                form,
                "yes" if form == each.choice else "",
                *(f"{ms:.2f}" for ms in (predicted, *saved)),
                *(f"{predicted / ms:.2f}" for ms in saved),
            ]
            rows.append(_row(cells))
    chosen = [(each, each.choice) for each in jobs if each.choice != PLAIN]
    repeating = [(each, form) for each in jobs if each.job.factor > 1 for form in NAMES[1:]]
    near = [
        f"{sum(each.is_near(form, by) for each, form in pairs)} of {len(pairs)}"
        for by in (CLOCK, PROCESSOR)
        for pairs in (chosen, repeating)
    ]
    return [
        "## Predicted savings",
        "",
        "Of the embedding part: compute, exchanges, and the expansion. Medians over steps, means over processes.",
        "",
        *_table(
            "factor aimed at, lookups, samples, form, chosen, predicted saving (ms), measured by the clock, of "
            "processor time, predicted over that by the clock, over that of processor time"
        ),
        *rows,
        "",
        (
            f"Within {WITHIN:.0%} of the measured saving by the clock: {near[0]} chosen forms, {near[1]} forms of jobs "
            f"with repeats. Of processor time, without what other work takes of a core: {near[2]} and {near[3]}."
        ),
    ]


def part_lines(jobs: Sequence[Measured]) -> list[str]:
    """Return the table of parts, of all jobs with repeats."""
    rows = []
    for each in jobs:
        if each.job.factor == 1:
            continue
        for form in NAMES:
            parts = [
                f"{each.predicted[form][name]:.2f} / {each.part_ms(form, name, CLOCK):.2f} / "
                f"{each.part_ms(form, name, PROCESSOR):.2f}"
                for name in PARTS
            ]
            rows.append(_row([*each.cells, form, *parts]))
    return [
        "## Parts",
        "",
        "Milliseconds: predicted / measured by the clock / in processor time of the training thread.",
        "",
        *_table(
            "factor aimed at, lookups, samples, form, forward compute, backward compute, exchange of indices, exchange "
            "forward, exchange backward, expansion"
        ),
        *rows,
    ]


def _table(columns: str) -> list[str]:
    names = columns.split(", ")
    return [_row(names), f"|{'---|' * len(names)}"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

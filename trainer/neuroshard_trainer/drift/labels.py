"""Labels of a training: all equal since a step, or another share of them 1 than at the start.

Labels are drawn: with a share q of a kind, n of that kind in a row have the probability q to the power of n. So a run
is a finding from the length at which that is below one in a billion, and if it is several times as long as all runs
before: data in the order of their labels have long ones as well. The share of the other kind is taken to be lower than
it was counted, by three deviations of its number.
"""

from math import log, sqrt
from typing import Final, NamedTuple, Self

from neuroshard_api.documents.counts import Count
from neuroshard_api.documents.document import Value

from neuroshard_trainer.drift.input_statistics import has_moved

CHANCE: Final = 1e-9
"""Probability of a run that is a finding."""
LONGER: Final = 3
"""Times the longest run before that a finding takes."""
KNOWN_DEVIATIONS: Final = 3.0
UNKNOWN_SAMPLES: Final = 10_000
"""Samples of one kind from the start on that are a finding: there is no share of the other kind yet."""
REFERENCE_INTERVALS: Final = 3
HELD_INTERVALS: Final = 2
RATE_DEVIATIONS: Final = 6.0
HALF: Final = 0.5
"""Label that is added to a count, so that none at all has a logarithm."""


class ConstantLabels(NamedTuple):
    """A run of equal labels."""

    label: int
    first_step: int
    share_before: float | None
    """Of labels that were the same before. None: there were none."""


class LabelState(Value):
    """What the watch knows."""

    counts: tuple[Count, Count] = (0, 0)
    """Labels 0 and 1 before the run."""
    longest: tuple[tuple[Count, Count], ...] = ()
    """Step and samples of each run that was longer than all before it."""
    run_label: int | None = None
    run_samples: Count = 0
    run_step: Count = 0
    num_intervals: Count = 0
    reference: tuple[Count, Count] = (0, 0)
    """Labels 0 and 1 of the first intervals."""
    held: Count = 0

    def before(self, step: int) -> Self:
        """Return the state without runs that began from a step on, and without the run and the reports that last."""
        longest = tuple(each for each in self.longest if each[0] < step)
        return self.model_copy(
            update={"longest": longest, "run_label": None, "run_samples": 0, "run_step": 0, "held": 0}
        )


class LabelWatch:
    """Watches the labels of this rank's steps, and the rate of all ranks.

    Args:
        state: of a watch to go on from. If unset: it begins with the next step.
        chance: probability of a run that is a finding.
    """

    def __init__(self, state: LabelState | None = None, *, chance: float = CHANCE) -> None:
        state = state or LabelState()
        self._chance = chance
        self._counts = list(state.counts)
        self._longest = list(state.longest)
        self._label, self._run_samples, self._run_step = state.run_label, state.run_samples, state.run_step
        self._num_intervals, self._held = state.num_intervals, state.held
        self._reference = list(state.reference)
        self._ended: ConstantLabels | None = None

    @property
    def state(self) -> LabelState:
        """What the watch knows: another that starts from it finds the same."""
        return LabelState(
            counts=(self._counts[0], self._counts[1]),
            longest=tuple(self._longest),
            run_label=self._label,
            run_samples=self._run_samples,
            run_step=self._run_step,
            num_intervals=self._num_intervals,
            reference=(self._reference[0], self._reference[1]),
            held=self._held,
        )

    def add(self, step: int, num_positive: int, num_samples: int) -> None:
        """Take in the labels of a step."""
        label = 0 if not num_positive else 1 if num_positive == num_samples else None
        if label is not None and label == self._label:
            self._run_samples += num_samples
            return
        if self._label is not None:
            self._ended = self.constant or self._ended
            self._counts[self._label] += self._run_samples
            if self._run_samples > self._longest_samples:
                self._longest.append((self._run_step, self._run_samples))
        self._label, self._run_step = label, step
        self._run_samples = 0 if label is None else num_samples
        if label is None:
            self._counts[0] += num_samples - num_positive
            self._counts[1] += num_positive

    @property
    def constant(self) -> ConstantLabels | None:
        """The run of equal labels that lasts, if chance does not explain it."""
        if self._label is None:
            return None
        same, other = self._counts[self._label], self._counts[1 - self._label]
        if not other:
            is_long = same + self._run_samples >= UNKNOWN_SAMPLES
            return ConstantLabels(self._label, self._run_step, None) if is_long else None
        rare = min(1.0, max(0.0, other - KNOWN_DEVIATIONS * sqrt(other)) / (same + other))
        if not rare or self._run_samples <= LONGER * self._longest_samples:
            return None
        if rare < 1 and self._run_samples * log(1 - rare) > log(self._chance):
            return None
        return ConstantLabels(self._label, self._run_step, same / (same + other))

    @property
    def _longest_samples(self) -> int:
        return self._longest[-1][1] if self._longest else 0

    def take_ended(self) -> ConstantLabels | None:
        """Return a run that chance does not explain, and that has ended since the last call. None: there was none."""
        ended, self._ended = self._ended, None
        return ended

    def moved_rate(self, num_positive: int, num_samples: int) -> tuple[float, float] | None:
        """Take in the labels of all ranks since the report before.

        Returns:
            The rate of the first reports and that of this one, where it is another one and was in the report before.
        """
        if not num_samples:
            return None
        if self._num_intervals < REFERENCE_INTERVALS:
            self._num_intervals += 1
            self._reference[0] += num_samples - num_positive
            self._reference[1] += num_positive
            return None
        rarer = int(self._reference[1] <= self._reference[0])  # its share has the larger ratios
        counts = (num_samples - num_positive, num_positive)
        known = sum(self._reference)
        before = (self._reference[rarer] + HALF) / (known + 1)
        since = (counts[rarer] + HALF) / (num_samples + 1)
        count = int(min(self._reference[rarer], before * num_samples))
        self._held = self._held + 1 if has_moved(before, since, count, deviations=RATE_DEVIATIONS) else 0
        return (self._reference[1] / known, num_positive / num_samples) if self._held >= HELD_INTERVALS else None

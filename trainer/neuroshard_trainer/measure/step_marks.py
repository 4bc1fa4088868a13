"""The marks of one step: which parts it has, and what was marked of them. Hooks of the timers fill it.

A mark costs the host about as much as the launch of a kernel, and a step has more than a dozen. So every step has its
begin and its end, and one step in ten is timed in parts: in the others the hooks return at once.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import modf, sqrt
from typing import Final, Literal, NamedTuple, TypeAlias

from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family

from neuroshard_trainer.ranks.clocks import Clock, Mark

TIMED_EVERY: Final = 10
"""Steps of which one is timed in parts: a window of 100 has 10. On an H200 whose host needs 5.6 ms for a step and 23 us
for a mark, the 17 marks of a step were 7 % of it, and 3.5 are 1.4 %."""
_STRIDE: Final = sqrt(7)
"""Its multiples modulo 1 are spread evenly, and fall in with no period of a training: of eight irrational numbers, this
one chose steps that come every 2 to 50 steps most nearly as often as they come."""


class TimedPart(StrEnum):
    """A part of a step, by its field of RankTimes."""

    INPUT_COMMUNICATION = "input_communication_ms"
    FORWARD_COMPUTE = "forward_compute_ms"
    FORWARD_COMMUNICATION = "forward_communication_ms"
    BACKWARD_COMMUNICATION = "backward_communication_ms"
    BACKWARD_COMPUTE = "backward_compute_ms"
    EXPANSION = "expansion_ms"
    SERVERS = "server_ms"
    DENSE_FORWARD = "dense_forward_ms"
    DENSE_BACKWARD = "dense_backward_ms"
    DENSE_COLLECTIVES = "dense_collectives_ms"


COMPUTE = (TimedPart.FORWARD_COMPUTE, TimedPart.BACKWARD_COMPUTE)
COMMUNICATION = (TimedPart.INPUT_COMMUNICATION, TimedPart.FORWARD_COMMUNICATION, TimedPart.BACKWARD_COMMUNICATION)
DENSE = (TimedPart.DENSE_FORWARD, TimedPart.DENSE_BACKWARD, TimedPart.DENSE_COLLECTIVES)

Member: TypeAlias = Family | Literal[CollectiveKind.SYNC] | None
"""Whose interval it is. SYNC: the average over copies of groups. None: of all families together."""


class Interval(NamedTuple):
    """One part's begin and end. A tuple, since a step makes dozens."""

    part: TimedPart
    family: Member
    begin: Mark
    end: Mark
    idle_limit_ms: float | None
    """Longest time for which the device can have waited for the host within it. None: the host is what computes."""


def is_timed(number: int, *, every: int) -> bool:
    """Return whether a step is timed in parts: the first ``every`` steps, then one of ``every``, on all ranks alike.

    The first ones give a short training its times; of a longer one they leave the window like all others.

    Args:
        number: steps before it since the start.
        every: steps of which one is timed.
    """
    block, position = divmod(number, every)
    return block == 0 or position == int(every * modf(block * _STRIDE)[0])


class StepMarks:
    """Collects the intervals of one step after another; between ``start`` and ``stop`` only.

    Args:
        clock: makes the marks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._intervals: list[Interval] = []
        self.in_step = False
        """Whether a step is under way."""
        self.in_parts = False
        """Whether it is timed in parts; ask this before you mark a part."""

    def start(self, *, in_parts: bool = True) -> None:
        """Begin a step."""
        self._intervals = []
        self.in_step, self.in_parts = True, in_parts

    def stop(self) -> Sequence[Interval]:
        """Return the intervals since ``start``, and collect no more."""
        collected, self._intervals = self._intervals, []
        self.in_step = self.in_parts = False
        return collected

    def mark(self) -> Mark:
        """Mark this moment."""
        return self._clock.mark()

    def end(self, part: TimedPart, family: Member, begin: Mark) -> Mark:
        """End an interval here, and return the mark; it counts if it is within a step."""
        end = self._clock.mark()
        if self.in_step:
            self._intervals.append(Interval(part, family, begin, end, self._clock.idle_limit_ms(begin, end)))
        return end

"""What a search shows of itself while it runs: the best cost so far, its lower bound, and the share of its work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_costs.shards import FloatArray

from neuroshard_planner.problem.problem import Placement, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchState:
    """How far a search is."""

    best_ms: float
    """Predicted cost of the cheapest placement so far that fits."""
    bound_ms: float
    """No placement costs less."""
    work_share: float
    """Work done, of the most that the search may take, up to 1; a search that finds nothing more ends before."""

    @property
    def gap(self) -> float:
        """How far the best cost is above the bound, as a share of the bound; infinite above a bound of 0."""
        return self.best_ms / self.bound_ms - 1 if self.bound_ms else float("inf")


Watch = Callable[[SearchState], None]


class Watched:
    """Looks at all placements that a search prices, and shows its state."""

    def __init__(self, problem: Problem, watch: Watch, *, bound_ms: float, most_work: int) -> None:
        self._watch = watch
        self._bound_ms = bound_ms
        self._begin, self._most_work = problem.work, most_work
        self._best_ms = np.inf

    def priced(self, problem: Problem, placements: Sequence[Placement], totals_ms: FloatArray) -> None:
        """Show the state after these [p] costs of placements of the problem."""
        for position in np.flatnonzero(totals_ms < self._best_ms).tolist():
            if totals_ms[position] < self._best_ms and problem.fits(placements[position]):
                self._best_ms = float(totals_ms[position])
        if np.isfinite(self._best_ms):
            share = min(1.0, (problem.work - self._begin) / self._most_work)
            self._watch(SearchState(best_ms=self._best_ms, bound_ms=self._bound_ms, work_share=share))

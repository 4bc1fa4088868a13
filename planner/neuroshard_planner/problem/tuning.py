"""The parts and the constants of the search, in one value. A benchmark varies it, no user does.

What keeps numbers apart or a solver's time bounded is next to its code: no plan gets better by it.
"""

from dataclasses import dataclass

from neuroshard_costs.arithmetic import geometric

INFINITE = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTuning:
    """What `benchmarks/search_ablation.py` changes, one field after the other.

    Work is in device evaluations; shares are of the work budget, unless they say otherwise. Many fields at 0 leave out
    their part; ``has_...`` does so where no number can.
    """

    work_per_unit: int = 120
    """One to two milliseconds per table; 10,000 tables on 1,024 devices take three quarters of a minute."""
    least_work: int = 18_000
    """With the next two a third of a second for small sets on a node, which are cheap to search well."""
    least_work_per_device: int = 1_300
    most_least_work: int = 160_000
    split_share: float = 2 / 3
    """Of the work of a course or of dealing out, for splitting and placing; descents have the rest."""
    phase_share: float = 0.25
    """For the opening, for steps of a whole plan with tables in host memory, for dealing out assignments, for a round
    of random changes, for a round of all families that has the work of the search by columns too, and for a plan near
    the incumbent."""
    short_share: float = 0.1
    """For merging shards, for a search near the bound, and for the descents and the other rounds of all families.
    Budgets below as much of the least one are the opening's alone: a beam search needs more."""

    most_small_units: int = 100
    """A set of more is large: descents take long, and few of them are made."""
    most_opened_units: int = 1200
    """A set of more has no opening, of which no descent comes to an end, and no assignments."""
    num_best: int = 3
    """Placements or proposals that descents go on from, assignments of each power and fills that are dealt out, units
    that a neighbor of the best assignment has otherwise, choices of units in host memory that all others are searched
    for, and states that the beam keeps, as many as the reference's."""
    num_candidates: int = 10
    """Units split per level and criterion, as in the reference; states that the networks place; placements that
    descend, and packings that are kept; units that may leave device memory, those with most bytes."""
    num_judged: int = 32
    """Candidates per step that the networks judge, also merges of one unit, the narrowest shards first; shards of a
    device, spread evenly over its loads, that a move may take; and changes of a round, and choices that do not fit,
    with tables in host memory."""
    least_gain: float = 1e-4
    """Of the cost, in a move or a pass; less doubles the time and lowers the cost by less than a thousandth."""
    least_round_gain: float = 0.001
    """Of the cost, in a round, for another one to follow; a plan as near the bound has nothing left to gain."""
    most_rounds: int = 3
    """Of random changes, of neighbors, and of passes over all units; a last one gains nothing."""
    num_lanes: int = 8
    """Descents side by side; of more the arrays no longer are in the processor's cache."""
    near: float = 1.05
    """Times the lower bound, below which a short search of a large set follows the opening; times the best plan of all
    families, above which no search by columns goes on from its opening; and times the time of a unit's fastest shard,
    below which more splits hardly better it."""

    far: float = 1.1
    """Times the lower bound, above which random changes to cuts by columns go on in vain, in rounds twice as long: such
    sets have many local optima."""

    longest: tuple[float, ...] = (INFINITE, 1.0, 0.7, 0.5, 0.35, 0.2)
    """Of proposals and of assignments: largest shard over a device's mean load."""
    widths: tuple[int, ...] = (64, 32, 16)
    """Of proposals: most columns of any shard; even widths suit sets whose tables are much alike."""
    memory_shares: tuple[float, ...] = (1.0, 0.75, 0.5)
    """Of proposals: most memory of any shard over a device's."""
    dim_limits: tuple[float, ...] = (1.0, 1.05, 1.1, 1.2, 1.35, INFINITE)
    """Of greedy passes: most columns of a device over the mean; the reference's grid is 1.0 to 1.5."""
    memory_prices: tuple[float, ...] = (0.0, 0.5, 2.0)
    """Of greedy passes: a device's share of used memory next to its share of load."""
    patience: int = 3
    """Levels without a lower smooth cost before the beam search ends."""

    num_targets: int = 16
    """Least loaded devices that a move may use, a split half of them; more find little on the public workloads. As many
    shards, the largest, may be split."""
    num_random_moves: int = 3
    """Of a random change; more forget what the last descent found."""
    has_conversions: bool = True
    """Whether descents convert single units to another family."""

    powers: tuple[int, ...] = (2, 4, 8, 16)
    """Of the means by which assignments are descended."""

    memory_price_steps: tuple[float, ...] = (0.0, *geometric(1 / 64, 4096, 25).tolist())
    """Of all device memory, as multiples of the mean cost of a device: from that at which only tables leave that are
    hardly looked up, to that at which time hardly counts."""
    most_alone: tuple[float, ...] = (1.0, 1.5, 2.0, 4.0, 8.0, INFINITE)
    """Limits on the time of a shard, as multiples of the mean cost of a device: a shard above it makes others wait."""

    @property
    def opening_grid(self) -> tuple[tuple[float, float], ...]:
        """Limits on columns and prices of memory, where one pass for each proposal must do."""
        first, *further = self.memory_prices
        return (
            *((limit, first) for limit in self.dim_limits[::2]),
            *((self.dim_limits[-1], price) for price in (first, *further)),
        )

    @property
    def most_stalled(self) -> int:
        """Random changes in a row that improve nothing."""
        return self.num_lanes * self.num_candidates

    def opening_work(self, num_devices: int) -> int:
        """Return the work below which a search is its opening alone."""
        return int(self.short_share * self.least_budget(num_devices))

    def least_budget(self, num_devices: int) -> int:
        """Return the work that the search of any set has, be its tables few."""
        return min(max(self.least_work, self.least_work_per_device * num_devices), self.most_least_work)

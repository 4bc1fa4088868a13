"""The parts and the constants of the search, in one value. A benchmark varies it, no user does.

What keeps numbers apart or a solver's time bounded is next to its code: no plan gets better by it.
"""

from dataclasses import dataclass

from neuroshard_costs.arithmetic import geometric

INFINITE = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTuning:
    """What `benchmarks/search_ablation.py` changes, one field after the other. Work is in device evaluations."""

    work_per_unit: int = 50
    """Times the square root of the devices: one to two milliseconds per table."""
    most_work_per_unit: int = 120
    """10,000 tables on 1,024 devices take three quarters of a minute."""
    least_work: int = 30_000
    """With the next two a third of a second for small sets on a node, which are cheap to search well."""
    least_work_per_device: int = 2_000
    most_least_work: int = 160_000
    most_small_units: int = 100
    """A set of more is large: descents take long, and few of them are made."""
    num_best: int = 3
    """Placements or proposals that descents go on from, wherever a few are chosen."""
    least_gain: float = 1e-4
    """Of the cost, in a move or a pass; less doubles the time and lowers the cost by less than a thousandth."""
    close_enough: float = 0.001
    """Gap to the lower bound at which nothing is left to gain."""

    grid_blocks: tuple[int, ...] = (2, 4, 8)
    """Blocks of columns of a grid_shard table."""
    column_shards: tuple[int, ...] = (2, 4, 8, 16, 32)
    """Shards of a table that a step converts to column_wise."""
    num_nodes_tried: int = 2
    """Least loaded nodes for a table_row_wise table."""
    most_replicated_bytes: int = 64 * 2**20
    """Largest gradient of a data_parallel table: every device sends and receives twice as much in a step."""

    load_shares: tuple[float, ...] = (INFINITE, 1.0, 0.7, 0.5, 0.35, 0.2)
    """Of proposals: largest shard over a device's mean load."""
    widths: tuple[int, ...] = (64, 32, 16)
    """Of proposals: most columns of any shard; even widths suit sets whose tables are much alike."""
    columns_shares: tuple[float, ...] = (2.0, 1.0)
    """Of proposals: most columns of any shard over a device's mean; they matter with many devices."""
    memory_shares: tuple[float, ...] = (1.0, 0.5)
    """Of proposals: most memory of any shard over a device's."""
    dim_limits: tuple[float, ...] = (1.0, 1.05, 1.1, 1.2, 1.35, INFINITE)
    """Of greedy passes: most columns of a device over the mean; the reference's grid is 1.0 to 1.5."""
    memory_prices: tuple[float, ...] = (0.0, 0.5, 2.0)
    """Of greedy passes: a device's share of used memory next to its share of load."""
    opening_grid: tuple[tuple[float, float], ...] = (
        *((1.0, 0.0), (1.1, 0.0), (1.35, 0.0), (INFINITE, 0.0)),
        *((1.1, 1.0), (INFINITE, 0.5), (INFINITE, 2.0)),
    )
    """Limits on columns and prices of memory, where one pass for each proposal must do."""
    num_judged_placements: int = 24
    """Of the states placed together, the cheapest by additive loads, which the networks judge."""
    has_beam_levels: bool = True
    """Whether a beam search splits units further than the proposals do."""
    num_split_units: int = 10
    """Per level and criterion, as in the reference."""
    patience: int = 3
    """Levels without a lower smooth cost before the beam search ends."""
    num_shuffled_states: int = 12
    """States that are placed in shuffled orders."""
    num_shuffles: int = 64
    """Of each state."""
    num_judged_shuffles: int = 16
    most_shuffle: float = 0.2
    """Standard deviation of the logarithm of the factors that shuffle the order."""
    shuffled_dim_limits: tuple[float, ...] = (1.0, 1.02, 1.05, 1.08, 1.1, 1.15, 1.2, 1.35, INFINITE)

    num_targets: int = 16
    """Least loaded devices that a move may use; more find little on the public workloads."""
    num_source_shards: int = 64
    """Shards of the source tried per move, spread evenly over its loads."""
    num_split_shards: int = 16
    """Largest shards of the source; a split makes new shards, which the networks must represent."""
    num_split_targets: int = 8
    num_judged: int = 32
    """Candidates per step that the networks judge."""
    has_moves_by_traffic: bool = True
    """Whether local search also moves shards by the traffic that bounds their device."""
    has_moves_by_memory: bool = True
    """Whether local search also swaps shards by their memory."""

    has_baseline_starts: bool = True
    """Whether the cheapest baseline is one more start."""
    has_opening: bool = True
    """Whether descents from a few proposals come before all else."""
    most_opened_units: int = 2000
    """Above it splitting and placing come first: no descent comes to an end."""
    opening_share: float = 0.2
    """Of the work."""
    opening_work_per_device: int = 1000
    """Smaller budgets are the opening's alone: a beam search needs more."""
    most_opening_work: int = 16_000
    """On many devices the budget grows less than with the devices."""
    has_course: bool = True
    """Whether beam searches over cuts follow the opening."""
    few_shards: int = 4
    """Most shards of a table in the first of them, and in every other random change; 0: no limit in any."""
    split_share: float = 2 / 3
    """Of the work after the opening, for splitting and placing."""
    near: float = 1.05
    """Times the lower bound, below which a short search of a large set follows the opening."""
    near_share: float = 0.1
    """Of the work, for that search."""
    ends_near_bound: bool = True
    """Whether the search of a large set is short where its opening is near the bound."""
    has_packing_start: bool = True
    """Whether a packing by memory is one more start where memory is tight."""
    tight: float = 0.9
    """Share of all memory in use above which it is."""
    has_exact_packing: bool = True
    """Whether an integer program packs what greedy fills do not."""
    has_perturbation: bool = True
    """Whether random changes to the best plan by columns follow its descent."""
    num_random_moves: int = 3
    """More forget what the last descent found."""
    most_stalled: int = 100
    """Perturbations in a row that improve nothing before the search ends."""
    most_rounds: int = 6
    """Of perturbations beyond the budget of small sets; a last one gains nothing."""
    round_share: float = 0.25
    """Of the work budget; what a round of perturbations adds to it."""
    least_round_gain: float = 0.002
    """Of the cost, in a round, for another one to follow."""
    has_consolidation: bool = True
    """Whether shards of the plan are merged within the tolerance."""
    consolidation_share: float = 0.1
    """Of the work budget, on top of it."""
    most_merges: int = 64
    """Of one unit that are judged per round, the narrowest shards first."""
    migration_share: float = 0.25
    """Of the work, on top of it, for a plan near the incumbent."""
    most_returning_passes: int = 3
    """Over all units; what goes back to the incumbent's place in one pass may let another unit go back in the next."""

    powers: tuple[int, ...] = (2, 4, 8, 16)
    """Of the means by which assignments are descended."""
    longest: tuple[float, ...] = (4.0, 3.0, 2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4)
    """Times of the longest shard of an assignment, as shares of a device's mean load."""
    most_passes: int = 6
    """Of the descent of an assignment over all units."""
    most_assigned_units: int = 1200
    """A set of more units is left to conversions."""
    num_assignments: int = 2
    """Of each power, that are dealt out."""
    num_changed: tuple[int, ...] = (1, 2, 4)
    """Units that a neighbor of the best assignment has in forms, or by columns, other than that."""
    least_promise: float = 0.01
    """Share by which what an assignment promises has to be below the known cost."""
    num_packed: int = 5
    """Packings of all families that are kept."""
    has_dealing: bool = True
    """Whether assignments are dealt out, and not put into the opening alone."""
    dealing_share: float = 0.25
    """Of the work, for dealing out assignments."""
    least_dealing: int = 100
    """Work that an assignment is dealt out with; small budgets deal out fewer of them."""
    refines_dealing: bool = True
    """Whether a beam search refines the cuts of what is dealt out."""
    refined_dealing: int = 2_000
    """Work of each from which it does."""
    dealing_split_share: float = 0.8
    """Of the work of dealing out, for splits and placing; descents have the rest."""
    has_conversions: bool = True
    """Whether descents convert single units to another family."""
    num_starts: int = 10
    """Placements of all families that descend a little."""
    most_dearer: float = 1.5
    """Times the cheapest, of placements that descents start from."""
    descent_share: float = 0.15
    """Of the work, for descents from them."""
    num_whole: int = 3
    """Placements of a large set that descend to their end."""
    columns_gain: float = 0.1
    """Of what the opening by columns costs, that the whole search by columns may gain."""
    refined_share: float = 0.05
    """Of the work, for conversions of the plan by columns."""
    has_longer_descents: bool = True
    """Whether placements descend further where the search by columns is left out."""
    whole_descent_shares: tuple[float, float] = (0.8, 0.3)
    """Of the work, for these descents, and for further ones of the best."""
    most_mixed_rounds: int = 6
    """Of dealing out and changing the best plan of all families."""
    round_dealing_share: float = 0.1
    """Of the work, in a round, for dealing out the best, and as much for the descents that follow."""
    perturbing_share: float = 0.05
    """Of the work, in a round."""
    whole_round: int = 3
    """Times the work of a round, where that of the search by columns is saved."""
    least_mixed_round_gain: float = 0.001
    """Of the cost, in a round, for another one to follow."""
    most_mixed_stalled: int = 60
    """Random changes in a row that improve nothing."""
    converted_share: float = 1 / 2
    """Of random changes; the others change shards by columns."""

    most_tried: int = 4
    """Choices of units in host memory that all others are searched for."""
    most_tried_where_all_fits: int = 2
    """Where host memory is not needed, and rarely helps."""
    most_attempts: int = 12
    """Choices that may turn out not to fit."""
    memory_price_steps: tuple[float, ...] = (0.0, *geometric(1 / 64, 4096, 25).tolist())
    """Of all device memory, as multiples of the mean cost of a device: from that at which only tables leave that are
    hardly looked up, to that at which time hardly counts."""
    most_alone: tuple[float, ...] = (1.0, 1.5, 2.0, 4.0, 8.0, INFINITE)
    """Limits on the time of a shard, as multiples of the mean cost of a device: a shard above it makes others wait."""
    host_descent_share: float = 0.2
    """Of the work, for steps of the whole after each search."""
    has_host_neighbors: bool = True
    """Whether neighbors of a plan with tables in host memory are tried."""
    most_host_rounds: int = 8
    """Of neighbors, each round from the best of the last."""
    most_leaving: int = 8
    """Units in device memory that may leave it in a neighbor, those with most bytes."""
    most_forms_swapped: int = 4
    """Of a unit that leaves where another comes back, those of least additive cost."""
    has_host_returns: bool = True
    """Whether such a plan is searched again with a unit less there."""
    most_coming_back: int = 2
    """Units in host memory whose return is worth another search of all others."""

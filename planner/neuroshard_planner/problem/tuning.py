"""The parts and the constants of the search, in one value. A benchmark varies it, no user does."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTuning:
    """What `benchmarks/search_ablation.py` changes, one field after the other."""

    has_opening: bool = True
    """Whether descents from a few proposals come before all else."""
    has_baseline_starts: bool = True
    """Whether the cheapest baseline is one more start."""
    has_course: bool = True
    """Whether beam searches over cuts follow the opening."""
    few_shards: tuple[int, ...] = (2, 4)
    """Most shards of a table in the first courses; the last has no such limit."""
    has_beam_levels: bool = True
    """Whether a beam search splits units further than the proposals do."""
    num_shuffled_states: int = 12
    """States that are placed in shuffled orders."""
    widths: tuple[int, ...] = (64, 32, 16)
    """Of proposals: most columns of any shard; even widths suit sets whose tables are much alike."""
    columns_shares: tuple[float, ...] = (2.0, 1.0)
    """Of proposals: most columns of any shard over a device's mean; they matter with many devices."""
    memory_shares: tuple[float, ...] = (1.0, 0.5)
    """Of proposals: most memory of any shard over a device's."""
    memory_prices: tuple[float, ...] = (0.0, 1.0)
    """Of greedy passes."""
    dim_limits: tuple[float, ...] = (1.0, 1.05, 1.1, 1.2, 1.35, float("inf"))
    """Of greedy passes: most columns of a device over the mean; the reference's grid is 1.0 to 1.5."""
    has_perturbation: bool = True
    """Whether random changes to the best plan by columns follow its descent."""
    most_rounds: int = 6
    """Of perturbations beyond the budget of small sets; a last one gains nothing."""
    has_packing_start: bool = True
    """Whether a packing by memory is one more start where memory is tight."""
    has_exact_packing: bool = True
    """Whether an integer program packs what greedy fills do not."""
    has_consolidation: bool = True
    """Whether shards of the plan are merged within the tolerance."""
    has_moves_by_traffic: bool = True
    """Whether local search also moves shards by the traffic that bounds their device."""
    has_moves_by_memory: bool = True
    """Whether local search also swaps shards by their memory."""
    powers: tuple[int, ...] = (2, 4, 8, 16)
    """Of the means by which assignments are descended."""
    num_changed: tuple[int, ...] = (1, 2, 4)
    """Units that a neighbor of the best assignment has in forms, or by columns, other than that."""
    has_dealing: bool = True
    """Whether assignments are dealt out, and not put into the opening alone."""
    refines_dealing: bool = True
    """Whether a beam search refines the cuts of what is dealt out."""
    has_conversions: bool = True
    """Whether descents convert single units to another family."""
    num_starts: int = 10
    """Placements of all families that descend a little."""
    has_longer_descents: bool = True
    """Whether they descend further where the search by columns is left out."""
    most_mixed_rounds: int = 6
    """Of dealing out and changing the best plan of all families."""
    columns_gain: float = 0.1
    """Of what the opening by columns costs, that the whole search by columns may gain."""
    num_whole: int = 3
    """Placements of a large set that descend to their end."""
    has_host_neighbors: bool = True
    """Whether neighbors of a plan with tables in host memory are tried."""
    has_host_returns: bool = True
    """Whether such a plan is searched again with a unit less there."""
    most_tried: int = 4
    """Choices of units in host memory that all others are searched for."""
    ends_near_bound: bool = True
    """Whether the search of a large set is short where its opening is near the bound."""

"""How near the search of all types comes to the best of all plans: random small sets on two nodes of two devices.

    OMP_NUM_THREADS=1 python -m benchmarks.optimality [--sets 200]

Search, bound, and exhaustion (`exhaustion.py`) share the bundled cost networks. Writes
benchmarks/results/optimality_any_<date>.md.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.problem import Problem

from benchmarks.exhaustion import least_ms
from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE

FIRST_SEED = 40_000
"""Of the sets; tests and the search's development have others."""
AIMS = {0.01: 0.95, 0.05: 1.0}
"""Share of the sets that are to be within a share of the best."""
ROUNDING = 1e-5
FEWEST_TABLES, MOST_TABLES = 3, 5


class Outcome(NamedTuple):
    """One set's plan and bound over its best plan."""

    seed: int
    gap: float
    bound: float
    """Over the best; 1 is as high as a bound can be."""


def drawn_tables(rng: random.Random) -> tuple[Table, ...]:
    """Return 3 to 5 tables: few rows and many, cold and hot."""
    count = rng.randint(FEWEST_TABLES, MOST_TABLES)
    return tuple(
        Table(
            name=f"t{index}",
            num_embeddings=int(10 ** rng.uniform(1, 7.5)),
            embedding_dim=rng.choice((4, 8)) if count < MOST_TABLES else 4,
            pooling_factor=round(10 ** rng.uniform(0, 2), 2),
            zipf_exponent=rng.choice((None, 0.0, 1.1)),
        )
        for index in range(count)
    )


def drawn_request(seed: int) -> PlanRequest:
    """Return a set with all sharding types allowed."""
    rng = random.Random(seed)  # noqa: S311 - draws benchmark data
    return PlanRequest(
        tables=TableSet(name=f"set {seed}", tables=drawn_tables(rng)),
        topology=preset(DEVICE_TYPE).topology(num_nodes=2, devices_per_node=2),
        batch_size_per_device=rng.choice((512, 8192)),
        optimizer=rng.choice((Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD)),
        constraints=Constraints(sharding_types=tuple(ShardingType)),
    )


def outcome(seed: int) -> Outcome:
    """Plan a set, and try all of its plans."""
    request, bundle = drawn_request(seed), bundled_bundle(DEVICE_TYPE)
    found = plan(request, bundle=bundle)
    best_ms = least_ms(Problem(request, bundle))
    result = Outcome(seed, found.predicted.total_ms / best_ms - 1, found.lower_bound_ms / best_ms)
    sys.stderr.write(f"{result}\n")
    return result


def lines_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the result as Markdown."""
    gaps = [each.gap for each in outcomes]
    lines = ["| plans | share | aim | met |", "|---|---|---|---|"]
    for limit, aim in AIMS.items():
        share = sum(gap <= limit for gap in gaps) / len(gaps)
        lines.append(
            f"| within {limit:.0%} of the best | {share:.1%} | {aim:.0%} | {'yes' if share >= aim else 'no'} |"
        )
    above = sum(each.bound > 1 + ROUNDING for each in outcomes)
    worst = max(outcomes, key=lambda each: each.gap)
    lines += [
        "",
        f"Gap to the best: median {median(gaps):.3%}, most {worst.gap:.2%} (seed {worst.seed}).",
        f"Lower bound over the best: median {median(each.bound for each in outcomes):.3f}, least",
        f"{min(each.bound for each in outcomes):.3f}; above the best for {above} sets.",
    ]
    return lines


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.sets)
    lines = [
        "# Plans of small sets next to the best of all plans",
        "",
        f"{len(seeds)} random sets of 3 to 5 tables with 4 or 8 columns, seeds from {seeds[0]}, on 2 nodes of 2",
        f"{DEVICE_TYPE}, all sharding types allowed. All costs are those of the bundled networks (simulated), so that",
        "only the search is judged. The best is by exhaustion: every type of every table, every way to deal out its",
        "columns.",
        "",
    ]
    write_result("optimality", lines + lines_of([outcome(seed) for seed in seeds]), hardware="any")


if __name__ == "__main__":
    main()

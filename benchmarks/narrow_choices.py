"""Whether the planner's choice of narrow types is ever worse than exact exchange, and how near it is to the best pair.

    OMP_NUM_THREADS=1 python -m benchmarks.narrow_choices [--cases 200]

Each case is planned with the choice, with exact exchange, and under each permitted pair alone; all plans are judged by
the device simulator. Only costs are compared, so that other load on the machine does not matter.
"""

import argparse
import sys
from collections import Counter
from itertools import islice, product
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.communication import CommunicationChoices, WireType, WireTypes
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import PlanRequest, SearchSettings
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import simulated_cost
from neuroshard_planner.problem.problem import Problem

from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, draw_pool, sampled_tables

FIRST_SEED = 8_100_000
NUM_WORKLOADS = 20
NODES = (1, 2, 3, 4, 8)
BATCH_SIZES = (1024, 8192)
WORK_BUDGET = 1000
CHOICES = CommunicationChoices(forward=(WireType.BF16, WireType.INT8, WireType.MX4), backward=(WireType.BF16,))
EQUAL = 1e-9
NEAR = 0.01
_BUNDLE = bundled_bundle(DEVICE_TYPE)


class Case(NamedTuple):
    """Simulated milliseconds of one case."""

    name: str
    num_nodes: int
    chosen: WireTypes
    chosen_ms: float
    exact_ms: float
    best: WireTypes
    best_ms: float
    """Of the exact plan and those under each pair."""


def requests() -> list[tuple[str, PlanRequest]]:
    """Return all cases: workloads on nodes of 8 devices, with two batch sizes."""
    found = []
    for index, num_nodes, batch_size in product(range(NUM_WORKLOADS), NODES, BATCH_SIZES):
        generator = np.random.default_rng(FIRST_SEED + index)
        tables = sampled_tables(draw_pool(), int(generator.integers(10, 60)), generator, name=f"task {index}")
        request = PlanRequest(
            tables=tables,
            topology=preset(DEVICE_TYPE).topology(num_nodes=num_nodes, devices_per_node=8),
            batch_size_per_device=batch_size,
            communication=CHOICES,
            search=SearchSettings(work_budget=WORK_BUDGET),
        )
        found.append((f"task {index}, {num_nodes} nodes, batch {batch_size}", request))
    return found


def simulated_ms(found: Plan) -> float:
    """Return the simulated cost of a plan."""
    problem = Problem(found.resolved, _BUNDLE)
    return simulated_cost(problem, placement_of(found.tables, problem)).total_ms


def judged(name: str, request: PlanRequest) -> Case:
    """Plan a case in every way."""
    chosen = plan(request, bundle=_BUNDLE)
    ways = (WireTypes(), *CHOICES.pairs)
    plans = {
        types: plan(
            request.model_copy(update={"communication": None, "wire": None if types.is_exact else types}),
            bundle=_BUNDLE,
        )
        for types in ways
    }
    costs = {types: simulated_ms(each) for types, each in plans.items()}
    best = min(ways, key=lambda types: costs[types])
    assert chosen.communication is not None
    return Case(
        name=name,
        num_nodes=request.topology.num_nodes,
        chosen=chosen.communication.chosen,
        chosen_ms=simulated_ms(chosen),
        exact_ms=costs[WireTypes()],
        best=best,
        best_ms=costs[best],
    )


def lines_of(cases: list[Case]) -> list[str]:
    """Return the result in Markdown."""
    gains = np.array([1 - case.chosen_ms / case.exact_ms for case in cases])
    regrets = np.array([case.chosen_ms / case.best_ms - 1 for case in cases])
    num_above = int((gains < -EQUAL).sum())
    worst = sorted(cases, key=lambda case: case.best_ms / case.chosen_ms)[:3]
    lines = [
        "# The choice of narrow types, judged by the device simulator",
        "",
        (
            f"{len(cases)} cases: tables drawn as the paper's, 8 simulated H100 on each of 1 to 8 nodes, 1,024 or "
            "8,192 samples each. Permitted: BF16, INT8, and MX4 forward, BF16 backward, gains of 2 % and more. The "
            f"search has {WORK_BUDGET:,} evaluations. The planner decides by the networks; every plan here has its "
            "simulated cost, codec passes included. The passes' efficiency and launch are assumed. Accuracy is not "
            "part of it."
        ),
        "",
        f"- above exact exchange: {num_above} of {len(cases)}, by at most {max(-gains.min(), 0.0):.2%}",
        f"- gain over exact exchange: median {np.median(gains):.1%}, {gains.min():.1%} to {gains.max():.1%}",
        f"- more than {NEAR:.0%} above the best permitted pair: {int((regrets > NEAR).sum())} of {len(cases)}",
        f"- above the best permitted pair: median {np.median(regrets):.2%}, largest {regrets.max():.2%}",
        "",
        "| nodes | cases | median gain | chosen |",
        "|---|---|---|---|",
    ]
    for num_nodes in NODES:
        own = [case for case in cases if case.num_nodes == num_nodes]
        if own:
            chosen = Counter(case.chosen.text for case in own)
            named = "; ".join(f"{text}: {count}" for text, count in chosen.most_common())
            median = np.median([1 - case.chosen_ms / case.exact_ms for case in own])
            lines.append(f"| {num_nodes} | {len(own)} | {median:.1%} | {named} |")
    lines += ["", "Furthest from the best pair:", ""]
    lines += [
        f"- {case.name}: {case.chosen.text} {case.chosen_ms:.3f} ms, best {case.best.text} {case.best_ms:.3f} ms, "
        f"exact {case.exact_ms:.3f} ms"
        for case in worst
    ]
    return lines


def main() -> None:
    """Judge all cases, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", type=int, choices=range(1, 201), metavar="N", default=200, help="of 200, evenly spread"
    )
    count = parser.parse_args().cases
    every = requests()
    cases = []
    for name, request in islice(every, 0, None, max(1, len(every) // count)):
        cases.append(judged(name, request))
        sys.stderr.write(f"{name}: {cases[-1].chosen.text}, {cases[-1].chosen_ms / cases[-1].best_ms - 1:.3%}\n")
    print(write_result("narrow-choices", lines_of(cases), hardware="any", packages=("numpy",)))


if __name__ == "__main__":
    main()

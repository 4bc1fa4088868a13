"""All algorithms side by side."""

from typing import Any

import pytest
from neuroshard_api.documents.request import Algorithm, PlanRequest, SearchSettings
from neuroshard_planner.pipeline import plan as search
from neuroshard_report.explain.comparison import compare
from support import builders
from support.planner.exact_costs import ExactCosts

OWN = tuple(algorithm for algorithm in Algorithm if algorithm is not Algorithm.TORCHREC)


def request_of(num_tables: int = 9, **fields: Any) -> PlanRequest:
    """Return tables of two widths and rising pooling factors on four devices."""
    members = [
        builders.table(f"t{index}", embedding_dim=128 if index % 2 else 64, pooling_factor=1.0 + 3 * index)
        for index in range(num_tables)
    ]
    return builders.request(*members, **{"search": SearchSettings(work_budget=300), **fields})


def test_the_neural_search_costs_no_more_than_any_baseline() -> None:
    """It starts from the baselines; under a cost model without error the simulator agrees."""
    request = request_of()
    bundle = ExactCosts(request.topology.device)

    found = {each.algorithm: each.outcome for each in compare(request, bundle=bundle, algorithms=OWN)}

    best = found.pop(Algorithm.NEUROSHARD)
    assert best is not None
    for outcome in found.values():
        assert outcome is not None
        assert best.predicted.total_ms <= outcome.predicted.total_ms
        assert best.simulated.total_ms <= outcome.simulated.total_ms * 1.001
        assert outcome.num_split_tables == 0
        assert outcome.num_shards == 9


@pytest.mark.parametrize("algorithm", OWN)
def test_an_outcome_is_that_of_the_plan(algorithm: Algorithm) -> None:
    """Comparing finds what planning finds: the same cost, imbalance and memory."""
    request = request_of(algorithm=algorithm)
    bundle = ExactCosts(request.topology.device)
    plan = search(request, bundle=bundle)

    (line,) = compare(request, bundle=bundle, algorithms=(algorithm,))

    assert line.outcome is not None
    assert line.outcome.predicted == plan.predicted
    assert line.outcome.predicted.source == bundle.manifest.source
    assert line.outcome.simulated.source == "simulated:test-80gb"
    compute = [device.forward_compute_ms + device.backward_compute_ms for device in plan.predicted.devices]
    assert line.outcome.compute_imbalance == pytest.approx(max(compute) / (sum(compute) / 4))


def test_an_algorithm_that_finds_nothing_says_why() -> None:
    """Tables too large for one device: the greedy baselines never split and say so, the search splits."""
    large = builders.table("large", num_embeddings=400_000_000, embedding_dim=64)
    request = builders.request(large)

    lines = list(
        compare(
            request,
            bundle=ExactCosts(request.topology.device),
            algorithms=(Algorithm.NEUROSHARD, Algorithm.SIZE_GREEDY),
        )
    )

    assert lines[0].outcome is not None
    assert lines[0].outcome.num_split_tables == 1
    assert lines[1].outcome is None
    assert lines[1].problem is not None
    assert "never splits tables" in lines[1].problem


def test_algorithms_run_one_at_a_time() -> None:
    """The second algorithm has not begun when the first one's line is there: callers can time each."""
    request = request_of()
    bundle = ExactCosts(request.topology.device)
    lines = compare(request, bundle=bundle, algorithms=(Algorithm.DIM_GREEDY, Algorithm.NEUROSHARD))

    first = next(lines)

    assert first.algorithm is Algorithm.DIM_GREEDY
    assert first.evaluations < next(lines).evaluations

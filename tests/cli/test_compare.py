import json
from typing import Any

import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Algorithm
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_dlrm.comparing import timed_comparison
from support.builders import request, table
from support.cli.searches import quick

OPTIONS = ("criteo-kaggle", *quick(4))


@pytest.mark.filterwarnings("ignore")  # of torch and torchrec, where they are installed
def test_algorithms_are_compared_in_a_table(neuroshard: Any) -> None:
    """Cheapest first and marked; both costs say where they come from."""
    result = neuroshard("compare", *OPTIONS)

    assert result.code == 0
    names = {line.removeprefix("*").split()[0] for line in result.out.splitlines() if line.strip()}
    assert {"neuroshard", "size_greedy", "dim_greedy"} <= names
    assert next(line for line in result.out.splitlines() if line.startswith("*")).split()[1] == "neuroshard"
    assert "(simulated:" in result.out


@pytest.mark.filterwarnings("ignore")  # of torch and torchrec, where they are installed
def test_the_comparison_of_all_algorithms_is_json_for_machines(neuroshard: Any) -> None:
    """One object per algorithm: its costs by device, also where the traffic is off; or the problem why it has none."""
    result = neuroshard("compare", *OPTIONS, "--json")

    lines = json.loads(result.out)
    assert [line["algorithm"] for line in lines] == list(Algorithm)
    assert all("problem" in line or line["predicted"]["total_ms"] > 0 for line in lines)
    costed = [line for line in lines if "problem" not in line]
    assert all(line["simulated"]["source"].startswith("simulated:") for line in costed)
    assert all(min(line["other_traffic_ms"]) > 0 for line in costed)
    assert all(0 <= line["median_regret"] <= line["worst_regret"] for line in costed)
    assert min(line["median_regret"] for line in costed) < max(line["worst_regret"] for line in costed)


@pytest.mark.filterwarnings("ignore")  # of torch and torchrec, where they are installed
def test_torchrecs_planner_is_given_a_time() -> None:
    """Its search may take minutes; the line says how to give it more."""
    pytest.importorskip("torchrec")

    asked = request(table("user"), table("item"), topology=preset("h100-80gb").topology(devices_per_node=2))
    found = timed_comparison(asked, Algorithm.TORCHREC, bundle=bundled_bundle("h100-80gb"), torchrec_seconds=0.001)

    assert (found.comparison.problem or "").startswith("TorchRec's planner took more than 0.001 s; hint: ")


def test_a_contradiction_is_an_error(neuroshard: Any) -> None:
    """Not one line per algorithm."""
    result = neuroshard("compare", "no-such-model", *OPTIONS[1:])

    assert (result.code, result.out) == (2, "")
    assert "no-such-model" in result.err

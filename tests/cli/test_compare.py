import json
from typing import Any

import pytest
from neuroshard_api.request import Algorithm

OPTIONS = ("criteo-kaggle", "--devices", "4", "--device-type", "h100-80gb")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch and torchrec, where they are installed
def test_all_algorithms_are_compared(neuroshard: Any) -> None:
    """Cheapest first and marked; both costs say where they come from."""
    result = neuroshard("compare", *OPTIONS)

    assert result.code == 0
    names = [line.removeprefix("*").split()[0] for line in result.out.splitlines() if line.strip()]
    assert set(Algorithm) <= {name.rstrip(":") for name in names}
    assert next(line for line in result.out.splitlines() if line.startswith("*")).split()[1] == "neuroshard"
    assert "(simulated:" in result.out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch and torchrec, where they are installed
def test_the_comparison_is_json_for_machines(neuroshard: Any) -> None:
    """One object per algorithm: its costs by device, or the problem why it has none."""
    result = neuroshard("compare", *OPTIONS, "--json")

    lines = json.loads(result.out)
    assert [line["algorithm"] for line in lines] == list(Algorithm)
    assert all("problem" in line or line["predicted"]["total_ms"] > 0 for line in lines)
    assert all("problem" in line or line["simulated"]["source"].startswith("simulated:") for line in lines)


def test_a_contradiction_is_an_error(neuroshard: Any) -> None:
    """Not one line per algorithm."""
    result = neuroshard("compare", "no-such-model", *OPTIONS[1:])

    assert (result.code, result.out) == (2, "")
    assert "no-such-model" in result.err

"""What the drop-in's tests share."""

import importlib.util
from pathlib import Path

import pytest
from support.trainer.torchrec_marks import mark_torchrec

HAS_TORCHREC = importlib.util.find_spec("torchrec") is not None
collect_ignore_glob = [] if HAS_TORCHREC else ["*.py"]


@pytest.fixture(autouse=True)
def quick_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search with a small budget: no test here judges a plan, and the drop-in has no setting for it."""
    from neuroshard_planner.problem import problem
    from neuroshard_planner.problem.tuning import SearchTuning

    quick = SearchTuning(most_rounds=0, least_work=1000, least_work_per_device=0)
    monkeypatch.setattr(problem, "DEFAULT", quick)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    mark_torchrec(items, Path(__file__).parent)

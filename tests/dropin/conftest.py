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
    from neuroshard_planner import planning
    from neuroshard_planner.problem import problem
    from neuroshard_planner.problem.tuning import SearchTuning

    monkeypatch.setattr(planning, "LEAST_WORK", 1000)
    monkeypatch.setattr(planning, "LEAST_WORK_PER_DEVICE", 0)
    monkeypatch.setattr(problem, "DEFAULT", SearchTuning(most_rounds=0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    mark_torchrec(items, Path(__file__).parent)

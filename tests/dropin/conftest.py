"""What the drop-in's tests share."""

import importlib.util
from pathlib import Path

import pytest
from support.trainer.torchrec_marks import mark_torchrec

HAS_TORCHREC = importlib.util.find_spec("torchrec") is not None
collect_ignore_glob = [] if HAS_TORCHREC else ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    mark_torchrec(items, Path(__file__).parent)

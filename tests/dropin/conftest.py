"""What the drop-in's tests share. Warnings of torch, torchrec and their kind are not ours to mend."""

import importlib.util
import warnings
from pathlib import Path

import pytest

HAS_TORCHREC = importlib.util.find_spec("torchrec") is not None
collect_ignore_glob = [] if HAS_TORCHREC else ["*.py"]
if HAS_TORCHREC:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchrec.distributed  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.torchrec)
            item.add_marker(pytest.mark.filterwarnings("ignore:::(torch|torchrec|fbgemm_gpu)"))

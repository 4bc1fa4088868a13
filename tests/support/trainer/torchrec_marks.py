"""Marks of tests that need TorchRec. Warnings of torch, torchrec and their kind are not ours to fix."""

from collections.abc import Iterable
from pathlib import Path

import pytest


def mark_torchrec(items: Iterable[pytest.Item], folder: Path) -> None:
    """Mark the tests of a folder."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.torchrec)
            item.add_marker(pytest.mark.filterwarnings("ignore:::(torch|torchrec|fbgemm_gpu)"))

"""What the trainer's tests share."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from trainer_builders import process_group_of_one

HAS_TORCHREC = importlib.util.find_spec("torchrec") is not None
collect_ignore_glob = [] if HAS_TORCHREC else ["test_*.py"]


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of this process alone."""
    with process_group_of_one() as alone:
        yield alone

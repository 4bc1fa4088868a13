"""A process among those of a training."""

from collections.abc import Iterator

import pytest
import torch
from neuroshard_trainer.ranks.process import THREADS_VARIABLE, compute_on_one_core


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """Let torch compute with three threads, as on a machine with three cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("given", "found"), [(None, 1), ("3", 3)], ids=["by default", "as the user asks"])
def test_a_rank_computes_on_one_core_unless_the_user_asks_for_more(
    monkeypatch: pytest.MonkeyPatch, given: str | None, found: int
) -> None:
    """As the profile of its device did."""
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(THREADS_VARIABLE, given)

    compute_on_one_core()

    assert torch.get_num_threads() == found

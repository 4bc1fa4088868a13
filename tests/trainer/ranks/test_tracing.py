"""Ranges around the phases of a step, on a simulated GPU."""

import pytest
import torch
from neuroshard_trainer.ranks.tracing import traced


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ranges that a process with CUDA hands to NVTX."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: found.append(f"begin {name}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: found.append("end"))
    return found


def test_a_phase_is_a_range_of_nvtx_where_the_process_uses_cuda(ranges: list[str]) -> None:
    """Ranges nest as phases do."""
    with traced("evaluation"), traced("forward"):
        pass

    assert ranges == ["begin neuroshard/evaluation", "begin neuroshard/forward", "end", "end"]


def test_a_phase_that_fails_ends_its_range(ranges: list[str]) -> None:
    """The ranges of later phases lie at their own level."""
    with pytest.raises(ValueError, match="no such batch"), traced("forward"):
        raise ValueError("no such batch")

    assert ranges == ["begin neuroshard/forward", "end"]


def test_a_process_without_cuda_hands_nothing_to_nvtx(ranges: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch without NVTX would raise."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with traced("forward"):
        pass

    assert ranges == []

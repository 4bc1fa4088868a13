"""Specification of the copies of states that are written in the background; page locks are the driver's (simulated)."""

import logging
from typing import Any

import pytest
import torch
from neuroshard_trainer.state.staging import Staging, local_tensors


class Driver:
    """Locks pages as cudaHostRegister says: never the same twice, and none that are not there any more."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.locked: dict[int, int] = {}

    def lock(self, address: int, num_bytes: int) -> bool:
        """Lock pages."""
        ends = {begin: begin + size for begin, size in self.locked.items()}
        assert all(address >= end or address + num_bytes <= begin for begin, end in ends.items())
        if self.refuses:
            return False
        self.locked[address] = num_bytes
        return True

    def unlock(self, address: int) -> None:
        """Unlock a block."""
        del self.locked[address]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a whole tensor is in locked pages."""
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(start <= begin and end <= start + size for start, size in self.locked.items())


def state(value: float, *, rows: int = 3) -> dict[str, Any]:
    """Return weights and optimizer state of some types and shapes; one is part of a larger tensor."""
    whole = torch.full((rows, 8), value)
    return {
        "model": {"weight": whole[:, :5], "half": torch.full((7,), value, dtype=torch.float16)},
        "optimizer": {"w": {"sum": torch.full((rows,), value), "step": torch.tensor(value), "none": torch.empty(0)}},
    }


def values(copied: Any) -> list[tuple[str, list[Any]]]:
    """Return the numbers of a state."""
    return [(name, tensor.flatten().tolist()) for name, tensor in local_tensors(copied)]


def test_each_copy_is_the_state_of_its_moment() -> None:
    """What training changes afterwards is not in it, in the first copy as in later ones."""
    staging = Staging()
    for value in (1.0, 2.0, 3.0):
        live = state(value)
        copied = staging.copy(live)
        staging.keep(copied)
        live["model"]["weight"].zero_()

        assert values(copied) == values(state(value))


def test_later_copies_are_made_into_the_same_locked_memory() -> None:
    """Nothing is allocated, and the device writes at the link's rate."""
    driver = Driver()
    staging = Staging(lock=driver.lock, unlock=driver.unlock)
    first = staging.copy(state(1.0))
    staging.keep(first)
    second = staging.copy(state(2.0))
    staging.keep(second)

    assert len(driver.locked) == 1
    places = [tensor.data_ptr() for _, tensor in local_tensors(first)]
    assert [tensor.data_ptr() for _, tensor in local_tensors(second)] == places
    assert all(driver.holds(tensor) for _, tensor in local_tensors(second) if tensor.numel())


def test_a_state_of_other_shapes_gets_new_memory_and_the_old_is_unlocked() -> None:
    """A state that training has only later, as momentum; locked pages that are given back would be locked for ever."""
    driver = Driver()
    staging = Staging(lock=driver.lock, unlock=driver.unlock)
    staging.keep(staging.copy(state(1.0)))
    (before,) = driver.locked
    copied = staging.copy(state(2.0, rows=5))

    assert before not in driver.locked
    staging.keep(copied)
    assert values(staging.copy(state(4.0, rows=5))) == values(state(4.0, rows=5))
    assert len(driver.locked) == 1


def test_without_locked_pages_copies_are_made_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """A container may allow none; one line says so, not one for each checkpoint."""
    staging = Staging(lock=Driver(refuses=True).lock)
    with caplog.at_level(logging.WARNING):
        for value in (1.0, 2.0, 3.0):
            copied = staging.copy(state(value))
            staging.keep(copied)

    assert values(copied) == values(state(3.0))
    assert caplog.text.count("the driver locks no") == 1


def test_a_rank_without_tensors_has_nothing_to_keep() -> None:
    """Of a plan with more devices than tables."""
    staging = Staging()
    staging.keep(staging.copy({}))

    assert staging.copy({}) == {}

"""Specification of the copies between servers' values and a GPU; its queue and locked pages are simulated."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neuroshard_trainer.servers.copies import DeviceCopies, copies_of
from neuroshard_trainer.servers.model import _brought

CPU = torch.device("cpu")


class Gpu:
    """A queue of copies, which are made when the host waits for it or later work runs, as CUDA says of its streams."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], object]] = []
        self.num_locked = 0

    def locked(self, like: torch.Tensor) -> torch.Tensor:
        """Return locked pages, which hold nothing yet."""
        self.num_locked += 1
        pages = torch.full_like(like, torch.nan).as_subclass(LockedPages)
        pages.gpu = self
        return pages

    def wait(self) -> None:
        """Do all that was asked for."""
        for each in self.queued:
            each()
        self.queued.clear()

    @property
    def copies(self) -> DeviceCopies:
        """The copies of a trainer on this GPU."""
        return DeviceCopies(device=CPU, locked=self.locked, wait=self.wait)


class LockedPages(torch.Tensor):
    """Memory of the host that the GPU reads and writes by itself."""

    gpu: Gpu

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002 - torch's
        """Copy now, or when the GPU comes to it."""
        pages = self.as_subclass(torch.Tensor)
        if non_blocking:
            self.gpu.queued.append(lambda: pages.copy_(source))
        else:
            pages.copy_(source)
        return pages


def test_values_go_through_locked_pages_and_the_host_does_not_wait() -> None:
    """Later work of the same queue has them."""
    gpu, values = Gpu(), torch.arange(6.0).view(2, 3)

    assert torch.equal(gpu.copies.to_device(values), values)
    assert gpu.num_locked == 1


def test_gradients_are_there_when_servers_get_them() -> None:
    """Gloo reads host memory at once: the copy is waited for."""
    gpu, gradients = Gpu(), torch.arange(6.0).view(2, 3)

    assert torch.equal(gpu.copies.to_host(gradients), gradients)
    assert gpu.queued == []


@pytest.mark.parametrize("on_gpu", [False, True])
def test_gradients_are_those_of_the_trainers_wherever_these_compute(*, on_gpu: bool) -> None:
    """TorchRec divides by servers too: of 2 trainers and 1 server the factor is 3 / 2."""
    leaf, weights = torch.ones(2, 3, requires_grad=True), torch.arange(6.0).view(2, 3)
    found = _brought(leaf, 1.5, Gpu().copies if on_gpu else None)
    torch.autograd.backward((found * weights).sum())

    assert torch.equal(found, leaf)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, 1.5 * weights)


def test_a_gpu_s_copies_lock_pages_of_the_host_and_wait_for_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the device that the trainer computes on; on a CPU nothing is copied."""
    asked: list[Any] = []

    def empty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        asked.append(options)
        return tensor.clone()

    class Stream:
        def synchronize(self) -> None:
            asked.append("waited")

    def current_stream(device: torch.device) -> Stream:
        asked.append(device)
        return Stream()

    monkeypatch.setattr(torch, "empty_like", empty_like)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    copies = copies_of(torch.device("cuda", 3))
    assert copies is not None
    copies.to_host(torch.ones(2))

    assert asked == [{"device": "cpu", "pin_memory": True}, torch.device("cuda", 3), "waited"]
    assert copies_of(CPU) is None

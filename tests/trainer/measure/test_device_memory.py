"""Specification of the memory of a device in reports; the GPU's counters are made up (simulated)."""

from dataclasses import dataclass

import pytest
import torch
from neuroshard_trainer.measure.device_memory import measured_memory, use_expandable_segments


@dataclass(frozen=True)
class Counters:
    """A GPU of 80 GiB, on which the context and NCCL have 2 GiB."""

    allocated: int = 40 * 2**30
    reserved: int = 55 * 2**30

    def max_memory_allocated(self, device: torch.device) -> int:
        """Return the most of tensors."""
        assert device.index == 3
        return self.allocated

    def max_memory_reserved(self, device: torch.device) -> int:
        """Return the most of the allocator."""
        assert device.index == 3
        return self.reserved

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """Return free and all bytes."""
        assert device.index == 3
        return 80 * 2**30 - self.reserved - 2 * 2**30, 80 * 2**30


def test_a_gpu_reports_tensors_the_allocator_and_the_whole_device() -> None:
    """A peak of tensors alone hides fragments, the context, and NCCL, which fill the device as well."""
    assert measured_memory(torch.device("cuda", 3), cuda=Counters()) == {
        "peak_memory_bytes": 40 * 2**30,
        "peak_reserved_bytes": 55 * 2**30,
        "device_used_bytes": 57 * 2**30,
    }


def test_a_cpu_reports_the_process() -> None:
    """There is no device of its own."""
    found = measured_memory(torch.device("cpu"))

    assert list(found) == ["peak_memory_bytes"]
    assert found["peak_memory_bytes"] > 2**20


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_segments_grow_unless_the_user_configures_the_allocator(name: str) -> None:
    """Under either name; what the user says is left alone."""
    environment: dict[str, str] = {}
    use_expandable_segments(environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}

    given = {name: "max_split_size_mb:128"}
    use_expandable_segments(given)
    assert given == {name: "max_split_size_mb:128"}

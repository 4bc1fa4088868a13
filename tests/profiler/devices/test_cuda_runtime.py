"""What the runtime of a GPU queues, on tensors that have a device and no memory."""

from typing import Any

import torch
from neuroshard_profiler.devices.cuda_runtime import TorchCuda
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class Queued(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch, untyped
    """Notes the operations that are queued, with the bytes of their first argument."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[Any, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation, and do it."""
        read = args[0].nbytes if args and isinstance(args[0], torch.Tensor) else 0
        self.found.append((func, read))
        return func(*args, **(kwargs or {}))


def test_a_flush_reads_more_than_the_cache_and_leaves_no_written_line() -> None:
    """Written lines would go to the memory during the kernel that is timed next."""
    cuda = TorchCuda.__new__(TorchCuda)  # a device of the process is not made current
    cuda.index, cuda._flushed = 0, None

    with FakeTensorMode():
        cuda.flush(50_000_001)
        with Queued() as queued:
            cuda.flush(50_000_001)

    [(operation, read)] = queued.found
    assert not operation._schema.is_mutable
    assert read >= 50_000_001

"""One of several ranks: fails, or is late, where the others wait for it in a collective."""

import re
import time

import pytest
import torch.distributed as dist
from neuroshard_torchrec import DropInError
from neuroshard_torchrec.deadline import finish_together


def fail() -> None:
    """Raise on rank 1, for which the others wait in a barrier; it gets its own sentence back."""
    dist.init_process_group("gloo")
    assert finish_together(dist.get_rank, what="first", limit_seconds=300) == dist.get_rank()

    def work() -> None:
        if dist.get_rank() == 1:
            raise RuntimeError("no memory")
        dist.barrier()

    with pytest.raises(DropInError, match=re.escape("make of plan 'a': rank 1: RuntimeError: no memory")):
        finish_together(work, what="make of plan 'a'", limit_seconds=300)


def hang() -> None:
    """Be late on rank 1, for which the others wait in a barrier."""
    dist.init_process_group("gloo")

    def work() -> None:
        if dist.get_rank() == 1:
            time.sleep(600)
        dist.barrier()

    finish_together(work, what="make of plan 'a'", limit_seconds=1)

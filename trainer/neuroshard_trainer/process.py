"""One process among those that torchrun started: its rank, its device, and what it says when the others are gone."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from neuroshard_api.host_memory import keep_freed_memory

from neuroshard_trainer.errors import InputError, PeerLostError

DeviceChoice = Literal["auto", "cpu", "cuda"]
_LOST_PEER = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe|timed out|socket", re.IGNORECASE)
"""What torch's errors say when a collective fails; most are plain RuntimeErrors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """This process."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup
    """All ranks, for CPU tensors; TorchRec and DDP have the default group to themselves."""

    @property
    def is_first(self) -> bool:
        """Whether it writes what all ranks found."""
        return self.rank == 0


def joined(choice: DeviceChoice, *, timeout_seconds: float) -> Process:
    """Meet the other processes.

    Args:
        choice: ``auto`` takes a GPU if there is one.
        timeout_seconds: how long any collective operation waits for the others.

    Raises:
        InputError: torchrun did not start this process, or there is no such device.
        PeerLostError: the others did not come.
    """
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise InputError(f"{missing[0]} is not set; start with `torchrun ... -m neuroshard_trainer`")
    device = _device(choice, int(os.environ["LOCAL_RANK"]))
    if device.type == "cpu":
        keep_freed_memory()  # as the profiler did whose times the plan was made from
    with lost_peers(lambda: "while meeting the others"):
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout_seconds))
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
    assert isinstance(group, dist.ProcessGroup), "all ranks are in it"
    return Process(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device, group=group)


@contextmanager
def lost_peers(when: Callable[[], str]) -> Iterator[None]:
    """Turn the failure of a collective operation into PeerLostError; ``when`` says what was going on."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if not (isinstance(error, dist.DistError) or _LOST_PEER.search(str(error))):
            raise
        reason = re.sub(r"^\[\S+\] |\. This is typically.*", "", str(error).strip().splitlines()[0])
        raise PeerLostError(
            f"{when()} another process was gone or did not answer ({reason}); "
            "read the log of the process that ended first, then start all again"
        ) from error


def _device(choice: DeviceChoice, local_rank: int) -> torch.device:
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise InputError(
            f"local rank {local_rank} has no GPU of its own, there are {count}; "
            "start one process per GPU, or give --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device

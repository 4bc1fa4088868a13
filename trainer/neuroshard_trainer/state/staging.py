"""The copy of a state in the host's memory that is written while training continues. Writes nothing.

The first copy is torch's, into fresh memory. Its tensors then move into one block of whole pages, in the background,
and later copies are made into that: pages are there already, and on GPUs they are locked, so that the device writes
into them at the link's full rate. Fresh memory costs a page fault for every 4 KiB, memory that is not locked a second
copy.

The block is registered where it is (cudaHostRegister): torch's own pinned memory comes in powers of two, which may be
nearly twice a table. Where the driver locks no more pages, copies are made into the same block all the same.
"""

import logging
import mmap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from neuroshard_api.process.sizes import format_bytes
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor

from neuroshard_trainer.state.checkpoint import State

_ALIGNED_BYTES = 64
"""Of the begin of each tensor, as torch's allocator has it."""
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
PageLock = Callable[[int, int], bool]
"""Locks a number of bytes from an address on; returns whether the driver did."""

logger = logging.getLogger(__name__)


class Staging:
    """The place of a state's copies on this rank.

    Args:
        lock: locks pages for the device. None: the state is in the host's memory, which needs no locks.
        unlock: the opposite, for the address of a block.
    """

    def __init__(self, *, lock: PageLock | None = None, unlock: Callable[[int], None] = lambda _: None) -> None:
        self._lock = lock
        self._unlock = unlock
        self._stager = BlockingAsyncStager(cache_staged_state_dict=False)
        self._shapes: list[tuple[str, torch.Size, torch.dtype]] = []
        self._block: torch.Tensor | None = None
        self._has_moved = False

    def copy(self, state: State) -> State:
        """Return a copy of the state, which is whole; the one before is overwritten."""
        shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in local_tensors(state)]
        if not self._has_moved or shapes != self._shapes:
            self._forget()
            self._shapes = shapes
        found: State = self._stager.stage(dict(state))
        return found

    def keep(self, copied: State) -> None:
        """Keep the memory of a copy for the next one, unless it is kept already. Needs no device but to lock pages."""
        if self._has_moved:
            return
        tensors = [tensor for _, tensor in local_tensors(copied) if tensor.numel()]
        sizes = [-(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for tensor in tensors]
        if not sizes:
            return
        try:
            block = torch.frombuffer(mmap.mmap(-1, sum(sizes), flags=_PRIVATE), dtype=torch.uint8)
        except OSError as error:  # the checkpoint is written, and the next one is copied as this one was
            logger.warning("no memory is kept for the next copy of a checkpoint: %s", error)
            return
        at = 0
        for tensor, size in zip(tensors, sizes, strict=True):
            place = block[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            tensor.data = place.copy_(tensor)  # its own memory is free from here on
            at += size
        if self._lock is not None:
            if self._lock(block.data_ptr(), block.nbytes):
                self._block = block
            else:
                logger.warning(
                    "the driver locks no %s of the host's memory: copies of checkpoints take longer", format_bytes(at)
                )
        self._stager.cache_staged_state_dict, self._stager.state_dict_cache = True, dict(copied)
        self._has_moved = True

    def _forget(self) -> None:
        if self._block is not None:
            self._unlock(self._block.data_ptr())  # before its pages are given back
        self._block, self._has_moved = None, False
        self._stager = BlockingAsyncStager(cache_staged_state_dict=False)


def staging_for(device: torch.device) -> Staging:
    """Return the place of a rank's copies."""
    if device.type != "cuda":
        return Staging()

    def lock(address: int, num_bytes: int) -> bool:
        # A refusal is an error of this thread, which launches no kernel that would find it; the device set as a new
        # thread's is 0, on which every rank would otherwise make a context.
        torch.cuda.set_device(device)
        return int(torch.cuda.cudart().cudaHostRegister(address, num_bytes, 0)) == 0  # type: ignore[no-untyped-call] # torch's

    def unlock(address: int) -> None:
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call] # torch's

    return Staging(lock=lock, unlock=unlock)


def local_tensors(state: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:  # noqa: ANN401 - whatever a state holds
    """Yield this rank's part of each tensor of a state, with its place in it."""
    if isinstance(state, ShardedTensor):
        yield from ((f"{name}.{number}", shard.tensor) for number, shard in enumerate(state.local_shards()))
    elif isinstance(state, DTensor):
        yield name, state._local_tensor  # noqa: SLF001 - to_local() may return another object
    elif isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, value in state.items():
            yield from local_tensors(value, f"{name}.{key}")
    elif isinstance(state, (list, tuple)):
        for number, value in enumerate(state):
            yield from local_tensors(value, f"{name}.{number}")

"""Measures all-to-alls between the ranks that torchrun started, uneven and with skewed starts. Writes no files.

What is timed is what TorchRec does: forward, each rank sends the columns it holds for every sample to the sample's rank
and lays the received ones side by side; backward, the gradients go the other way and are divided by the ranks.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.records import CommunicationSample
from neuroshard_api.topology import Link
from torch import Tensor

from neuroshard_profiler.devices.base import TimedDevice
from neuroshard_profiler.devices.timing import relative_spread

_ELEMENT_TYPES = {4: torch.float32, 2: torch.float16, 1: torch.int8}
_WARM_UP, _TIMED = 2, 9
_LINK_WARM_UP, _LINK_TIMED = 5, 15
_LINK_BYTES = 2**23
"""Sent to each peer where bandwidth is measured: long against the latency, small against any memory."""
_LEAST_TRANSFER_SHARE = 0.1
"""Of a long exchange; a disturbed short one must not make the link infinitely fast."""
_MS_PER_SECOND = 1000.0
_PEERS_AT_ONCE = 8.0
"""A latency l is read as l * (1 + peers / 8), as the device simulator does."""


Group = Any
"""What torch calls a process group, which may be a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTimes:
    """Times of one all-to-all."""

    device_ms: tuple[float, ...]
    """Median of each rank, from its own start to its end."""
    spread: float
    """Interquartile range of the rank that starts last, as a share of its median."""
    num_repeats: int


class Ranks:
    """The processes that torchrun started, and this one among them."""

    def __init__(self, device: TimedDevice) -> None:
        """Meet the other ranks: over gloo on CPUs, over NCCL on GPUs."""
        self.device = device
        self.devices_per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        dist.init_process_group("nccl" if device.kind == "cuda" else "gloo")
        self.rank = dist.get_rank()
        self.num_devices = dist.get_world_size()

    @property
    def num_nodes(self) -> int:
        """Equal groups of ranks that share a node."""
        return self.num_devices // self.devices_per_node

    def agree(self, value: bool) -> bool:  # noqa: FBT001 - the value is what is agreed on
        """Return rank 0's value on every rank."""
        flag = torch.tensor([int(value)], device=self.device.torch)
        dist.broadcast(flag, src=0)
        return bool(flag.item())

    def measure(self, sample: CommunicationSample) -> DeviceTimes:
        """Time one all-to-all of all ranks; every rank calls this with the same sample and gets the same answer."""
        collective = _Collective(sample, self)
        offset_ms = sample.start_offsets_ms[self.rank] if sample.start_offsets_ms else 0.0
        mine = [self._timed(collective, offset_ms) for _ in range(_WARM_UP + _TIMED)][_WARM_UP:]
        everyone = [torch.zeros(_TIMED, dtype=torch.float64, device=self.device.torch) for _ in range(self.num_devices)]
        dist.all_gather(everyone, torch.tensor(mine, dtype=torch.float64, device=self.device.torch))
        times = torch.stack(everyone).cpu().numpy()
        last = int(np.argmax(sample.start_offsets_ms)) if sample.start_offsets_ms else int(times.mean(axis=1).argmax())
        return DeviceTimes(
            device_ms=tuple(float(median) for median in np.median(times, axis=1)),
            spread=relative_spread(times[last]),
            num_repeats=_TIMED,
        )

    def links(self) -> tuple[Link | None, Link | None]:
        """Measure the link inside a node and the one between nodes; None for a level without two devices."""
        node, place = divmod(self.rank, self.devices_per_node)
        inside = [
            dist.new_group([first + index for index in range(self.devices_per_node)])
            for first in range(0, self.num_devices, self.devices_per_node)
        ]
        across = [
            dist.new_group(list(range(place, self.num_devices, self.devices_per_node)))
            for place in range(self.devices_per_node)
        ]
        return (
            self._link(inside[node], self.devices_per_node) if self.devices_per_node > 1 else None,
            self._link(across[place], self.num_nodes) if self.num_nodes > 1 else None,
        )

    def _link(self, group: Group, size: int) -> Link:
        """Measure a group's link; the answer is that of the group that rank 0 is in."""
        short_ms, long_ms = (self._all_to_all_ms(group, size, num_bytes) for num_bytes in (4, _LINK_BYTES))
        seconds = torch.tensor([short_ms, long_ms], dtype=torch.float64, device=self.device.torch) / _MS_PER_SECOND
        dist.broadcast(seconds, src=0)
        short, long = seconds.tolist()
        peers = size - 1
        return Link(
            bandwidth_bytes_per_second=peers * _LINK_BYTES / max(long - short, _LEAST_TRANSFER_SHARE * long),
            latency_seconds=short / (1 + peers / _PEERS_AT_ONCE),
        )

    def _all_to_all_ms(self, group: Group, size: int, num_bytes: int) -> float:
        sent = torch.ones(size * num_bytes // 4, device=self.device.torch)
        received = torch.empty_like(sent)
        times = []
        for _ in range(_LINK_WARM_UP + _LINK_TIMED):
            dist.barrier(group)
            times.append(self._elapsed_ms(lambda: dist.all_to_all_single(received, sent, group=group)))
        return float(np.median(times[_LINK_WARM_UP:]))

    def _timed(self, collective: "_Collective", offset_ms: float) -> float:
        dist.barrier()
        until = time.perf_counter() + offset_ms / _MS_PER_SECOND
        while time.perf_counter() < until:
            pass
        return self._elapsed_ms(collective.run)

    def _elapsed_ms(self, call: Callable[[], object]) -> float:
        """Time a call on the clock, since others take part in it; on a GPU until the GPU is done."""
        start = time.perf_counter()
        call()
        if self.device.kind == "cuda":
            torch.cuda.synchronize()
        return _MS_PER_SECOND * (time.perf_counter() - start)

    def leave(self) -> None:
        """Part from the other ranks."""
        dist.destroy_process_group()


class _Collective:
    """One direction's exchange with the copies that TorchRec makes around it."""

    def __init__(self, sample: CommunicationSample, ranks: Ranks) -> None:
        self._batch_size = sample.batch_size_per_device
        self._columns = sample.embedding_dim_sums
        self._num_devices = ranks.num_devices
        mine = self._columns[ranks.rank]
        of_peers = [self._batch_size * columns for columns in self._columns]
        of_mine = [self._batch_size * mine] * ranks.num_devices
        self._is_forward = sample.direction == "forward"
        self._sends, self._receives = (of_mine, of_peers) if self._is_forward else (of_peers, of_mine)
        shape = (
            (ranks.num_devices * self._batch_size, mine) if self._is_forward else (self._batch_size, sum(self._columns))
        )
        element = _ELEMENT_TYPES[sample.bytes_per_element]
        self._input = torch.ones(shape, dtype=element, device=ranks.device.torch)

    def run(self) -> Tensor:
        """Exchange once."""
        if self._is_forward:
            received = self._exchange(self._input.flatten())
            parts = torch.split(received, self._receives)
            return torch.cat([part.view(self._batch_size, -1) for part in parts], dim=1)
        parts = torch.split(self._input, list(self._columns), dim=1)
        received = self._exchange(torch.cat([part.flatten() for part in parts]))
        return received.div_(self._num_devices)

    def _exchange(self, sent: Tensor) -> Tensor:
        received = torch.empty(sum(self._receives), dtype=sent.dtype, device=sent.device)
        dist.all_to_all_single(received, sent, self._receives, self._sends)
        return received

"""Measures all-to-alls between the ranks that torchrun started, uneven and with skewed starts. Writes no files.

What is timed is what TorchRec does for a column-wise plan (comm_ops.py of torchrec 1.9). Forward, each rank copies the
columns that it holds for every sample into a registered buffer, sends them to the sample's rank, lays the received ones
side by side, and permutes them into the tables' order. Backward, the gradients are permuted, go the other way, and are
divided by the number of ranks.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.records import CommunicationSample
from neuroshard_api.documents.topology import Link
from torch import Tensor

from neuroshard_profiler.devices.base import TimedDevice
from neuroshard_profiler.devices.exchange_timers import ExchangeRepeats, ExchangeTimer
from neuroshard_profiler.devices.timing import HOST_BOUND, relative_spread

_ELEMENT_TYPES = {4: torch.float32, 2: torch.float16, 1: torch.int8}
_LEAST_TRANSFER_SHARE = 0.1
"""Of a long exchange; a disturbed short one must not make the link infinitely fast."""
_MS_PER_SECOND = 1000.0
_PEERS_AT_ONCE = 8.0
"""A latency l is read as l * (1 + peers / 8), as the device simulator does."""


_Milliseconds = np.ndarray[tuple[int, int], np.dtype[np.float64]]
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
    disturbance: str | None = None
    """HOST_BOUND where some rank's times include waiting for its host. None: none does."""


class Ranks:
    """The processes that torchrun started, and this one among them."""

    def __init__(self, device: TimedDevice, *, timer: ExchangeTimer, repeats: ExchangeRepeats) -> None:
        """Meet the other ranks: over gloo on CPUs, over NCCL on GPUs.

        Args:
            device: that this rank drives.
            timer: of its exchanges.
            repeats: how often and how large; the smallest max_bytes of all ranks holds for all.
        """
        self.device = device
        self.devices_per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        if device.kind == "cuda":
            dist.init_process_group("nccl", device_id=device.torch)
        else:
            dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.num_devices = dist.get_world_size()
        self._timer = timer
        smallest = torch.tensor([repeats.max_bytes], device=device.torch)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
        self.repeats = replace(repeats, max_bytes=int(smallest.item()))
        self._few_bytes = torch.zeros(1, device=device.torch)
        self._levels: tuple[Group, Group] | None = None

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
        times, disturbance = self._times(None, self.num_devices, collective.run, offset_ms)
        last = int(np.argmax(sample.start_offsets_ms)) if sample.start_offsets_ms else None
        return _device_times(times, last, disturbance)

    def measure_call(self, call: Callable[[], object], group: Group, size: int) -> DeviceTimes:
        """Time a collective of a group; every rank calls this, and the ranks of a group get the same answer."""
        times, disturbance = self._times(group, size, call)
        return _device_times(times, None, disturbance)

    def group(self, num_nodes: int, devices_per_node: int) -> Group:
        """Return this rank's group of that shape: all devices, those of its node, or those of its place in the nodes.

        The first call for a level is made by all ranks.
        """
        if (num_nodes, devices_per_node) == (self.num_nodes, self.devices_per_node):
            return None
        inside, across = self._groups_of_levels()
        return inside if num_nodes == 1 else across

    def _times(
        self, group: Group, size: int, call: Callable[[], object], offset_ms: float = 0.0
    ) -> tuple[_Milliseconds, str | None]:
        """Return the milliseconds [ranks of the group, repeats] of a collective of the group, and what disturbed them.

        All ranks decide together whether a host fell behind and the repeats begin again with a longer spin.
        """
        count = self.repeats.warm_up + self.repeats.timed
        while True:
            mine = [self._timer.time_ms(lambda: self._barrier(group), call, offset_ms=offset_ms) for _ in range(count)]
            told = torch.tensor(
                [*mine[self.repeats.warm_up :], float(self._timer.fell_behind)],
                dtype=torch.float64,
                device=self.device.torch,
            )
            everyone = [torch.zeros_like(told) for _ in range(size)]
            dist.all_gather(everyone, told, group=group)
            found = torch.stack(everyone).cpu().numpy()
            times: _Milliseconds = found[:, :-1]
            if not found[:, -1].any():
                return times, None
            longer = torch.tensor([int(self._timer.spin_longer())], device=self.device.torch)
            dist.all_reduce(longer, op=dist.ReduceOp.MAX, group=group)  # their spins may differ from earlier groups
            if not longer.item():
                return times, HOST_BOUND

    def _barrier(self, group: Group) -> None:
        """Let the ranks of a group begin together: on GPUs queued, on CPUs waited for."""
        if self.device.kind == "cuda":
            dist.all_reduce(self._few_bytes, group=group)
        else:
            dist.barrier(group)

    def links(self) -> tuple[Link | None, Link | None]:
        """Measure the link inside a node and the one between nodes; None for a level without two devices."""
        inside, across = self._groups_of_levels()
        return (
            self._link(inside, self.devices_per_node) if self.devices_per_node > 1 else None,
            self._link(across, self.num_nodes) if self.num_nodes > 1 else None,
        )

    def _groups_of_levels(self) -> tuple[Group, Group]:
        """Return this rank's group inside its node and the one between nodes, made once by all ranks."""
        if self._levels is not None:
            return self._levels
        node, place = divmod(self.rank, self.devices_per_node)
        inside = [
            dist.new_group([first + index for index in range(self.devices_per_node)])
            for first in range(0, self.num_devices, self.devices_per_node)
        ]
        across = [
            dist.new_group(list(range(place, self.num_devices, self.devices_per_node)))
            for place in range(self.devices_per_node)
        ]
        self._levels = inside[node], across[place]
        return self._levels

    def _link(self, group: Group, size: int) -> Link:
        """Measure a group's link; the answer is that of the group that rank 0 is in."""
        link_bytes = self.repeats.link_bytes
        short_ms, long_ms = (self._all_to_all_ms(group, size, num_bytes) for num_bytes in (4, link_bytes))
        seconds = torch.tensor([short_ms, long_ms], dtype=torch.float64, device=self.device.torch) / _MS_PER_SECOND
        dist.broadcast(seconds, src=0)
        short, long = seconds.tolist()
        peers = size - 1
        return Link(
            bandwidth_bytes_per_second=peers * link_bytes / max(long - short, _LEAST_TRANSFER_SHARE * long),
            latency_seconds=short / (1 + peers / _PEERS_AT_ONCE),
        )

    def _all_to_all_ms(self, group: Group, size: int, num_bytes: int) -> float:
        sent = torch.ones(size * num_bytes // 4, device=self.device.torch)
        received = torch.empty_like(sent)
        times, _ = self._times(group, size, lambda: dist.all_to_all_single(received, sent, group=group))
        mine: float = np.median(times, axis=1)[dist.get_rank(group)]
        return float(mine)

    def leave(self) -> None:
        """Part from the other ranks."""
        dist.destroy_process_group()


def _device_times(times: _Milliseconds, last: int | None, disturbance: str | None) -> DeviceTimes:
    """Return the times of ranks [ranks, repeats], of which one starts last; None: all start together."""
    judged = int(times.mean(axis=1).argmax()) if last is None else last
    return DeviceTimes(
        device_ms=tuple(float(median) for median in np.median(times, axis=1)),
        spread=relative_spread(times[judged]),
        num_repeats=times.shape[1],
        disturbance=disturbance,
    )


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
            registered = torch.empty_like(self._input).copy_(self._input)
            parts = torch.split(self._exchange(registered.flatten()), self._receives)
            joined = torch.cat([part.view(self._batch_size, -1) for part in parts], dim=1)
            return _permuted(joined, self._columns)
        parts = torch.split(_permuted(self._input, self._columns), list(self._columns), dim=1)
        received = self._exchange(torch.cat([part.flatten() for part in parts]))
        return received.div_(self._num_devices)

    def _exchange(self, sent: Tensor) -> Tensor:
        received = torch.empty(sum(self._receives), dtype=sent.dtype, device=sent.device)
        dist.all_to_all_single(received, sent, self._receives, self._sends)
        return received


def _permuted(joined: Tensor, columns: Sequence[int]) -> Tensor:
    """Return the ranks' columns in the opposite order: one copy, as TorchRec's permutation of column shards is."""
    return torch.cat(torch.split(joined, list(columns), dim=1)[::-1], dim=1)

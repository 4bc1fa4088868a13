"""Measures the collectives of weights and gradients of a dense part, on all devices and on each level of the network.

What is timed is what torch does in training, copies of a module's weights or gradients included:

==============  ====================================================================================================
all_gather      fully_shard copies the shard into a buffer, gathers, and copies the weights out of it
reduce_scatter  fully_shard copies the gradients into a buffer, and reduces them to a shard
all_reduce      DistributedDataParallel divides the gradients in its buckets, and adds them up
==============  ====================================================================================================
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist
from neuroshard_api.documents.bundle import ReductionKind
from neuroshard_api.documents.records import ProfileRecord, ReductionSample
from neuroshard_api.documents.topology import Link
from torch import Tensor

from neuroshard_profiler.benches.comm import Group, Ranks
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.records import RecordsFile

REDUCTIONS_FILE = "reductions.jsonl"
_STEP = 4
SIZES = tuple(_STEP**exponent for exponent in range(6, 16))
"""Bytes, 4 KiB to 1 GiB."""
LEAST_SIZES = 4
"""Measured although the budget is spent, to 256 KiB: they take less than a second between processes of a machine."""
_MOST_LEAST_BYTES = 2 * SIZES[LEAST_SIZES - 1]  # sizes are rounded to whole values of each device
_VALUE_BYTES = 4
_SIZES_OF_EXCHANGES = 2
"""A collective has half as many buffers as an all-to-all, whose largest size the ranks know: what is gathered or
reduced, torch's buffer, the result, and as much again for NCCL."""

_all_gather: Callable[..., object] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., object] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""As fully_shard calls them: releases of torch before 2.14 have the second names alone."""


def reduction_samples(
    num_nodes: int, devices_per_node: int, links: tuple[Link | None, Link | None], *, max_bytes: int
) -> Iterator[ReductionSample]:
    """Yield the samples, the least bytes first; each level is measured alone where devices span both."""
    shapes = dict.fromkeys(((num_nodes, devices_per_node), (1, devices_per_node), (num_nodes, 1)))
    for size in SIZES:
        for nodes, devices in shapes:
            whole = _VALUE_BYTES * nodes * devices
            num_bytes = whole * max(1, round(size / whole))
            if nodes * devices == 1 or num_bytes > max_bytes:
                continue
            for kind in get_args(ReductionKind):
                yield ReductionSample(
                    kind=kind,
                    num_nodes=nodes,
                    devices_per_node=devices,
                    intra_node=links[0] if devices > 1 else None,
                    inter_node=links[1] if nodes > 1 else None,
                    num_bytes=num_bytes,
                )


def collect_reductions(
    ranks: Ranks,
    path: Path,
    *,
    links: tuple[Link | None, Link | None],
    budget_seconds: float,
    environment: Mapping[str, str],
    max_records: int | None = None,
) -> None:
    """Measure with all ranks each sample that the file lacks, until the time is spent; rank 0 appends the records.

    A size that would take longer than what is left of the time is not begun.

    Raises:
        RecordsError: on rank 0: the file is broken or holds another machine's records.
    """
    with ExitStack() as stack:
        file = stack.enter_context(RecordsFile(path, source=ranks.device.source)) if ranks.rank == 0 else None
        budget = Budget(seconds=budget_seconds, earlier_seconds=file.elapsed_seconds if file else 0.0)
        samples = reduction_samples(
            ranks.num_nodes,
            ranks.devices_per_node,
            links,
            max_bytes=_SIZES_OF_EXCHANGES * ranks.repeats.max_bytes,
        )
        known = [[_sized(each.reduction) for each in file.records if each.reduction] if file else []]
        dist.broadcast_object_list(known, src=0)
        missing = [sample for sample in samples if _sized(sample) not in known[0]]
        took: dict[tuple[str, int, int], float] = {}
        for index, sample in enumerate(missing, start=len(known[0])):
            begun = budget.elapsed_seconds
            is_spent = (
                begun + _STEP * took.get(sample.key, 0.0) > budget_seconds and sample.num_bytes > _MOST_LEAST_BYTES
            )
            if ranks.agree(is_spent or (max_records is not None and index >= max_records)):
                break
            collective = TimedCollective(sample, ranks)
            times = ranks.measure_call(collective.run, collective.group, sample.num_devices)
            took[sample.key] = budget.elapsed_seconds - begun
            if file is not None:
                file.append(
                    ProfileRecord(
                        source=ranks.device.source,
                        reduction=sample,
                        device_ms=times.device_ms,
                        spread=times.spread,
                        num_repeats=times.num_repeats,
                        disturbance=times.disturbance,
                        elapsed_seconds=budget.elapsed_seconds,
                        environment=dict(environment),
                    )
                )


def _sized(sample: ReductionSample) -> tuple[object, int]:
    """Return the collective, its devices, and its bytes, whatever the links were measured as."""
    return sample.key, sample.num_bytes


class TimedCollective:
    """One collective of a module's weights or gradients with the copies around it."""

    def __init__(self, sample: ReductionSample, ranks: Ranks) -> None:
        self.group: Group = ranks.group(sample.num_nodes, sample.devices_per_node)
        self._kind = sample.kind
        self._size = sample.num_devices
        place = dist.get_rank(self.group)
        num_values = sample.num_bytes // _VALUE_BYTES
        self._whole = torch.ones(num_values, device=ranks.device.torch)
        shard = num_values // self._size
        self._own = slice(place * shard, (place + 1) * shard)
        self.shard = torch.ones(shard, device=ranks.device.torch)
        """Weights of this rank."""

    def run(self) -> Tensor:
        """Return the gathered or reduced values."""
        match self._kind:
            case "all_gather":
                gathered = torch.empty_like(self._whole)
                gathered[self._own].copy_(self.shard)
                _all_gather(gathered, gathered[self._own], group=self.group)
                return torch.empty_like(gathered).copy_(gathered)
            case "reduce_scatter":
                gradients = torch.empty_like(self._whole).copy_(self._whole)
                reduced = torch.empty_like(self.shard)
                _reduce_scatter(reduced, gradients, group=self.group)
                return reduced
            case "all_reduce":
                self._whole.div_(self._size)
                dist.all_reduce(self._whole, group=self.group)
                return self._whole

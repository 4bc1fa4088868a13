"""Devices that a plan needs more memory of than they have: by how much, and for what."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceMemory
from neuroshard_costs.memory_ledger import MemoryLedger

NUM_TABLES = 3  # named of each device

_PURPOSES = {
    "weights_bytes": "weights",
    "optimizer_state_bytes": "optimizer state",
    "activation_bytes": "returned vectors and their gradients",
    "input_bytes": "inputs of the shards",
    "local_input_bytes": "inputs of the device's samples",
    "sort_bytes": "sort buffers",
    "gradient_bytes": "dense gradients",
    "cache_bytes": "caches of tables in host memory",
    "dense_bytes": "dense part",
    "managed_collision_bytes": "managed collision",
    "reserve_bytes": "reserve",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OverfullDevice:
    """A device that a plan does not fit on."""

    device: int
    used_bytes: int
    capacity_bytes: int
    purposes: tuple[tuple[str, int], ...]
    """What the memory is for, with bytes, largest first."""
    tables: tuple[tuple[str, int], ...]
    """Tables with most weights and optimizer state there, in bytes, largest first."""

    @property
    def over_bytes(self) -> int:
        """What is missing."""
        return self.used_bytes - self.capacity_bytes


def overfull_devices(plan: Plan) -> tuple[OverfullDevice, ...]:
    """Return the devices that a plan needs more memory of than they have, those with most missing first."""
    over = [device for device, memory in enumerate(plan.memory) if memory.used_bytes > memory.capacity_bytes]
    if not over:
        return ()
    ledger = MemoryLedger(plan.resolved)
    found = (
        OverfullDevice(
            device=device,
            used_bytes=plan.memory[device].used_bytes,
            capacity_bytes=plan.memory[device].capacity_bytes,
            purposes=_purposes(plan.memory[device]),
            tables=_largest(_table_bytes(plan, ledger, device))[:NUM_TABLES],
        )
        for device in over
    )
    return tuple(sorted(found, key=lambda each: (-each.over_bytes, each.device)))


def _purposes(memory: DeviceMemory) -> tuple[tuple[str, int], ...]:
    return _largest([(name, getattr(memory, field) or 0) for field, name in _PURPOSES.items()])


def _table_bytes(plan: Plan, ledger: MemoryLedger, device: int) -> list[tuple[str, int]]:
    """Return weights and optimizer state of each table's shards on a device."""
    found = []
    for index, table in enumerate(plan.tables):
        sizes = [(shard.num_rows, shard.num_columns) for shard in table.shards if shard.device == device]
        if sizes and not table.compute_kernel.is_on_host:
            rows, columns = np.array(sizes, dtype=np.int64).T
            position = np.full(len(sizes), index)
            state = ledger.optimizer_state_bytes(position, rows, columns)
            found.append((table.name, int((ledger.weights_bytes(position, rows, columns) + state).sum())))
    return found


def _largest(sizes: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return those with any bytes, largest first."""
    return tuple(sorted((each for each in sizes if each[1]), key=lambda each: -each[1]))

"""What is kept free on a device: outside torch's allocator, and in its gaps."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, MemorySettings
from neuroshard_costs.memory_ledger import MemoryLedger
from support.builders import device_type, request, table, topology

GIB = 2**30
WHOLE = (np.array([0]), np.array([1000]), np.array([64]), np.array([0]))


def _ledger(memory_bytes: int = 80 * GIB, limit: int | None = None, **memory: Any) -> MemoryLedger:
    return MemoryLedger(
        request(
            table(pooling_factor=5.0),
            topology=topology(2, memory_bytes=memory_bytes),
            memory=MemorySettings.model_validate(memory),
            constraints=Constraints(max_memory_bytes_per_device=limit),
        )
    )


def test_gaps_follow_what_a_step_allocates_and_frees() -> None:
    """Weights and optimizer state leave none; segments that cannot grow leave twice as many."""
    entries = [_ledger(expandable_segments=grows).devices(*WHOLE)[0] for grows in (True, False)]

    moving = [each.activation_bytes + each.input_bytes + each.local_input_bytes + each.sort_bytes for each in entries]
    gaps = [each.reserve_bytes - 5 * GIB // 2 for each in entries]
    assert gaps == [int(0.18 * moving[0]), int(0.37 * moving[1])]
    assert entries[0].weights_bytes > 0


def test_a_limit_leaves_room_for_what_is_outside_the_allocator() -> None:
    """Contexts and NCCL take the memory that a plan may not fill, and only then that of the plan."""
    fixed = {limit: _ledger(limit=limit).fixed_bytes for limit in (None, 79 * GIB, 60 * GIB)}

    assert fixed[None] - fixed[79 * GIB] == GIB
    assert fixed[None] - fixed[60 * GIB] == 5 * GIB // 2


def test_a_small_device_loses_a_sixteenth_at_most() -> None:
    """Contexts and channels of small devices are smaller."""
    fixed = [_ledger(memory_bytes=size).fixed_bytes for size in (80 * GIB, 16 * GIB)]

    assert fixed[0] - fixed[1] == 5 * GIB // 2 - GIB


def test_a_share_that_is_asked_for_takes_the_place_of_the_rule() -> None:
    """Of the capacity, whatever moves."""
    (entry, _) = _ledger(reserve_fraction=0.25, reserve_bytes=GIB).devices(*WHOLE)

    assert entry.reserve_bytes == 20 * GIB + GIB


def test_a_cpu_has_no_gaps() -> None:
    """Its allocator gives large blocks back at once."""
    on_cpu = topology(2, device=device_type(name="cpu-any", memory_bytes=80 * GIB))
    (entry, _) = MemoryLedger(request(topology=on_cpu)).devices(*WHOLE)

    assert entry.reserve_bytes == 5 * GIB // 2


@given(
    st.integers(0, 100 * GIB),
    st.sampled_from([{}, {"reserve_fraction": 0.2}, {"reserve_bytes": GIB, "expandable_segments": False}]),
)
def test_the_least_device_leaves_what_shards_need(shard_bytes: int, memory: dict[str, Any]) -> None:
    """On a device with that much memory there is room for the shards, and hardly more."""
    least = _ledger(**memory).least_device_bytes(shard_bytes)

    room = _ledger(memory_bytes=least, **memory).shard_capacity_bytes
    assert shard_bytes <= room <= shard_bytes + 2

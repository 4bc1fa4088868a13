"""Memory of managed collision, compared with what TorchRec's modules have after a training step."""

import pytest
import torch
from neuroshard_torchrec.asked import Asked
from neuroshard_torchrec.managed_collision import managed_collision_bytes
from neuroshard_torchrec.model_tables import model_tables
from support.dropin.dropin_models import META, Remapped, collisions, config
from support.dropin.dropin_planners import planned, planner
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    LFU_EvictionPolicy,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionModule,
    MCHEvictionPolicy,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import JaggedTensor

pytestmark = pytest.mark.torchrec

CPU = torch.device("cpu")
ROWS, DEVICES = 40, 4


def mapped(module: ManagedCollisionModule) -> nn.Module:
    """Return a collection of one table whose ids a module maps to rows."""
    table = config("t", rows=ROWS, features=("f",))
    found: nn.Module = ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(tables=[table], device=META), ManagedCollisionCollection({"t": module}, [table])
    )
    return found


def allocated_bytes(module: ManagedCollisionModule) -> int:
    """Return the bytes of all tensors of a module, the history of ids included, which is not a buffer."""
    tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    tensors["history"] = getattr(module, "_history_accumulator", torch.empty(0))
    return sum(each.numel() * each.element_size() for each in tensors.values())


@pytest.mark.parametrize("policy", [DistanceLFU_EvictionPolicy(), LFU_EvictionPolicy(), LRU_EvictionPolicy()])
def test_a_device_has_its_part_of_the_map_and_a_history_of_its_own(policy: MCHEvictionPolicy) -> None:
    """Every byte that the module of one of four devices has after its first step, for each eviction policy."""
    module = MCHManagedCollisionModule(
        zch_size=ROWS, device=META, eviction_policy=policy, eviction_interval=10, buckets=DEVICES
    )
    tables = model_tables(mapped(module), asked=Asked(by_name={"t": ParameterConstraints(pooling_factors=[3.0])}))
    blocks = [ROWS // DEVICES * device for device in range(DEVICES + 1)]
    of_device = module.rebuild_with_output_id_range((blocks[1], blocks[2]), blocks, device=CPU)
    ids = torch.arange(16 * 3)
    of_device.profile({"f": JaggedTensor(values=ids, lengths=torch.full((16,), 3))})

    assert managed_collision_bytes(tables, num_devices=DEVICES, batch_size=16) == allocated_bytes(of_device)


def test_identities_of_hashed_ids_are_memory_and_no_dense_part() -> None:
    """They are parameters of TorchRec's module, without gradient and optimizer, and cut with the table."""
    from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule  # warns when first imported

    module = HashZchManagedCollisionModule(zch_size=ROWS, device=CPU, total_num_buckets=DEVICES)
    model = mapped(module)
    blocks = [ROWS // DEVICES * device for device in range(DEVICES + 1)]
    of_device = module.rebuild_with_output_id_range((blocks[1], blocks[2]), blocks, device=CPU)
    made = planner()
    made.plan(model)
    memory = planned(made).request.memory

    assert memory.dense_bytes == 0
    assert memory.managed_collision_bytes == allocated_bytes(of_device)


def test_all_tables_of_all_collections_are_counted() -> None:
    """Bags and sequences; every device's ledger has the sum, and a module without managed collision none."""
    made = planner(batch_size=64)
    made.plan(Remapped(3))
    tables = model_tables(Remapped(3))
    expected = managed_collision_bytes(tables, num_devices=4, batch_size=64)
    one = model_tables(mapped(collisions(config("t", rows=ROWS), META)._managed_collision_modules["t"]))

    assert expected == 2 * (managed_collision_bytes(one, num_devices=4, batch_size=64) or 0)
    assert [each.managed_collision_bytes for each in planned(made).memory] == [expected] * 4
    plain = model_tables(EmbeddingBagCollection(tables=[config("t")], device=META))
    assert managed_collision_bytes(plain, num_devices=4, batch_size=64) is None


def test_a_history_of_before_is_not_counted_twice() -> None:
    """A module that was trained whole makes a new history on each device."""
    fresh, trained = (collisions(config("t", rows=ROWS), CPU)._managed_collision_modules["t"] for _ in range(2))
    trained.profile({"f": JaggedTensor(values=torch.arange(8), lengths=torch.ones(8, dtype=torch.int64))})
    sizes = [
        managed_collision_bytes(model_tables(mapped(each)), num_devices=2, batch_size=16) for each in (fresh, trained)
    ]

    assert sizes[0] == sizes[1]

"""Memory of managed collision on each device: maps of ids to rows, and histories of ids.

TorchRec cuts the map of a table by rows with the table: a device has the entries of its rows. The history of
MCHManagedCollisionModule holds the ids that a device was asked for since the last eviction. It is allocated in the
first step, for as many ids in every step as there are then, and a quarter more. Ids are counted as evenly spread over
devices.
"""

from torchrec.modules.mc_modules import ManagedCollisionModule, MCHManagedCollisionModule

from neuroshard_torchrec.model_tables import ModelTables

ID_BYTES = 8
HISTORY_FACTOR = 1.25
"""Entries of a history over the ids of an eviction interval: _init_history_buffers of TorchRec."""
_HISTORY = "_history_"
"""Buffers of a history, which a module has after its first batch and does not hand on when it is cut."""


def managed_collision_bytes(tables: ModelTables, *, num_devices: int, batch_size: int) -> int | None:
    """Return the memory for managed collision on each device. None: the module has none.

    Temporary tensors of an eviction are not counted.

    Args:
        tables: of the module.
        num_devices: that share the rows of every table.
        batch_size: samples of each device.
    """
    lookups = {table.name: batch_size * table.pooling_factor for table in tables.table_set.tables}
    names = tables.by_path
    found = [
        _map_bytes(module, num_devices) + _history_bytes(module, lookups[names[each.path][name]])
        for each in tables.collections
        for name, module in each.id_maps.items()
        if name in names[each.path]
    ]
    return sum(found) if found else None


def _map_bytes(module: ManagedCollisionModule, num_devices: int) -> int:
    """Return a device's part of a module's tensors: of those with an entry for each row an even part, others whole."""
    num_rows: int = module.output_size()
    tensors = {name: each for name, each in module.named_buffers() if not name.startswith(_HISTORY)}
    total = 0
    for tensor in {**tensors, **dict(module.named_parameters())}.values():
        is_cut = tensor.dim() > 0 and tensor.shape[0] == num_rows
        entries = -(-num_rows // num_devices) * (tensor.numel() // num_rows) if is_cut else tensor.numel()
        total += entries * tensor.element_size()
    return total


def _history_bytes(module: ManagedCollisionModule, lookups: float) -> int:
    """Return the history of a device that serves this many ids in a step."""
    if not isinstance(module, MCHManagedCollisionModule):
        return 0
    entries = int(lookups * module._eviction_interval * HISTORY_FACTOR)  # noqa: SLF001 - it has no public name
    policy = module._eviction_policy  # noqa: SLF001 - it has no public name
    copies = 1 + sum(bool(each.is_history_metadata) for each in policy.metadata_info)
    return entries * ID_BYTES * copies

"""How a table is cut, and by which kernel its shards are looked up, in TorchRec's words.

table_wise       one shard                            column_wise     blocks of columns, each with all rows
row_wise         blocks of rows on all devices        table_row_wise  blocks of rows on the devices of one node
grid_shard       blocks of columns, each cut by rows on the devices of one node
data_parallel    the whole table on every device
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from neuroshard_api.documents.topology import Topology


class ShardingType(StrEnum):
    """How a table is cut; names as in TorchRec."""

    TABLE_WISE = "table_wise"
    COLUMN_WISE = "column_wise"
    ROW_WISE = "row_wise"
    TABLE_ROW_WISE = "table_row_wise"
    GRID = "grid_shard"
    DATA_PARALLEL = "data_parallel"

    @property
    def is_by_columns(self) -> bool:
        """Whether every shard has all rows of its columns, on one device."""
        return self in {ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE}

    @property
    def is_by_node(self) -> bool:
        """Whether the rows of a block of columns are dealt out to the devices of one node."""
        return self in {ShardingType.TABLE_ROW_WISE, ShardingType.GRID}


class Family(StrEnum):
    """Sharding types whose tables share collectives and their price."""

    COLUMNS = "columns"
    """Table-wise and column-wise."""
    ROWS = "rows"
    """Row-wise."""
    NODE_ROWS = "node_rows"
    """Table-row-wise and grid."""
    REPLICATED = "replicated"
    """Data-parallel."""

    @classmethod
    def of(cls, sharding_type: ShardingType) -> "Family":
        """Return the family of a sharding type."""
        match sharding_type:
            case ShardingType.TABLE_WISE | ShardingType.COLUMN_WISE:
                return cls.COLUMNS
            case ShardingType.ROW_WISE:
                return cls.ROWS
            case ShardingType.TABLE_ROW_WISE | ShardingType.GRID:
                return cls.NODE_ROWS
            case ShardingType.DATA_PARALLEL:
                return cls.REPLICATED


def trivial_case(kind: ShardingType, topology: Topology) -> ShardingType:
    """Return the type that all placements of a type have on these devices; as a rule the type itself.

    On one device every table is whole. Nodes of one device hold whole blocks of columns, and a single node's rows are
    those of all devices. A copied table stays one on a single device too: its dense kernel has gradients of all rows.
    """
    is_own = kind in {ShardingType.COLUMN_WISE, ShardingType.DATA_PARALLEL}  # blocks may be narrower than a table
    if topology.num_devices == 1 and not is_own:
        return ShardingType.TABLE_WISE
    if kind.is_by_node and topology.devices_per_domain == 1:
        return ShardingType.COLUMN_WISE if kind is ShardingType.GRID else ShardingType.TABLE_WISE
    return ShardingType.ROW_WISE if kind.is_by_node and topology.num_domains == 1 else kind


def placed_types(asked: Iterable[ShardingType], topology: Topology) -> tuple[ShardingType, ...]:
    """Return the types that tables of the asked types have on these devices; one block of columns is a whole table."""
    found = tuple(dict.fromkeys(trivial_case(kind, topology) for kind in asked))
    is_by_columns = ShardingType.COLUMN_WISE in found and ShardingType.TABLE_WISE not in found
    return (ShardingType.TABLE_WISE, *found) if is_by_columns else found


def asked_type(placed: ShardingType, asked: Sequence[ShardingType], topology: Topology) -> ShardingType:
    """Return the type that constraints name for a table of a placed type: itself, or one that comes to it."""
    if placed in asked:
        return placed
    if placed is ShardingType.TABLE_ROW_WISE and ShardingType.GRID in asked:
        return ShardingType.GRID  # of one block of columns
    return next((kind for kind in asked if placed in placed_types((kind,), topology)), placed)


class ComputeKernel(StrEnum):
    """How shards are looked up and updated; names as in TorchRec."""

    FUSED = "fused"
    """Lookup, gradient, and optimizer in one kernel, weights in device memory."""
    DENSE = "dense"
    """Lookup and a gradient of all rows; the optimizer is the trainer's own. For data_parallel tables alone."""
    FUSED_UVM = "fused_uvm"
    """As fused, weights in the node's host memory: every lookup reads its row over the host link."""
    FUSED_UVM_CACHING = "fused_uvm_caching"
    """As fused, weights in the node's host memory, and a cache of recently used rows in device memory."""

    @classmethod
    def of(cls, sharding_type: ShardingType) -> "ComputeKernel":
        """Return the kernel that runs a sharding type where none is named."""
        return cls.DENSE if sharding_type is ShardingType.DATA_PARALLEL else cls.FUSED

    @property
    def is_on_host(self) -> bool:
        """Whether the weights are in host memory."""
        return self in HOST_KERNELS


HOST_KERNELS = (ComputeKernel.FUSED_UVM, ComputeKernel.FUSED_UVM_CACHING)
"""Kernels whose weights are in host memory."""


def kernels_of(sharding_type: ShardingType) -> tuple[ComputeKernel, ...]:
    """Return the kernels that run a sharding type, the default first."""
    default = ComputeKernel.of(sharding_type)
    return (default,) if default is ComputeKernel.DENSE else (default, *HOST_KERNELS)


def num_row_parts(family: Family, topology: Topology) -> int:
    """Return the blocks that the rows of a table, or of a block of its columns, are cut into: 1 where they are not."""
    match family:
        case Family.ROWS:
            return topology.num_devices
        case Family.NODE_ROWS:
            return topology.devices_per_domain
        case Family.COLUMNS | Family.REPLICATED:
            return 1


def row_blocks(num_rows: int, num_parts: int) -> tuple[tuple[int, int], ...]:
    """Return first row and rows of each block, as TorchRec buckets lookups: equal blocks, the last ones may be empty.

    The cut cannot be chosen: a lookup of row r goes to block r // ceil(rows / parts), whatever the shards are.
    """
    height = -(-num_rows // num_parts)
    return tuple(
        (min(part * height, num_rows), max(0, min(height, num_rows - part * height))) for part in range(num_parts)
    )

"""What TorchRec runs of the placements that can be written down: one sentence for every rule that a plan breaks.

TorchRec trains most of the others without an error, and wrongly: rows that are cut elsewhere than it buckets lookups,
means under grid_shard, data_parallel tables whose optimizer lacks. So planner, adapter, and trainer all ask here.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer, Table
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kernels import DeviceKind, Release, width_problem
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, asked_type, kernels_of, row_blocks

REPLICATED_OPTIMIZERS = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD)
"""Optimizers whose dense form updates as the fused one: rows without a gradient stay as they are."""
BY_ROWS = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE)
"""Of which TorchRec computes means rightly, where all tables of a collection have mean pooling and one of these."""

POD_SIZE_VARIABLE = "TORCHREC_RESOLVED_POD_SIZE"
"""Environment variable by which TorchRec knows how many nodes a domain has."""

CUT_BY_COLUMNS = (ShardingType.COLUMN_WISE, ShardingType.GRID)
"""Types whose shards may be narrower than the table."""

Problem = tuple[str, str]
"""Path below the table's placement, and the sentence."""


class Devices(Protocol):
    """How many devices there are, numbered domain by domain."""

    @property
    def num_devices(self) -> int:
        """Devices of all domains."""

    @property
    def devices_per_domain(self) -> int:
        """Devices of each domain: of a node, or of the nodes that a link as fast as inside a node joins."""


def placement_problems(tables: Sequence[TablePlacement], request: PlanRequest) -> Iterator[str]:
    """Yield the problems of placements that cannot be run as written; each sentence begins with the field's path.

    At most one problem per table; only where no table has one, those of the tables together.

    Args:
        tables: in the order of the request's tables, one for each.
        request: what they answer.
    """
    found = False
    for index, (placement, table) in enumerate(zip(tables, request.tables.tables, strict=True)):
        problem = (
            shard_problem(
                placement,
                rows=table.num_embeddings,
                columns=table.embedding_dim,
                devices=request.topology,
                kind=request.topology.device.kind,
            )
            or _empty_block_problem(placement, request.topology)
            or block_order_problem(placement)
            or _kernel_problem(placement, table, request.topology)
            or _sequence_problem(placement, table)
            or _replicated_table_problem(placement, table, request.optimizer_of(table))
        )
        if problem is not None:
            found = True
            yield f"tables[{index}]{problem[0]}: {problem[1]} (table {table.name!r})"
    if not found:
        for positions in collections_of(request.tables.tables):
            yield from _pooling_problems(tables, request.tables.tables, positions)
            yield from _sequence_width_problems(tables, request.tables.tables, positions)


def shard_problem(
    placement: TablePlacement, *, rows: int, columns: int, devices: Devices, kind: DeviceKind
) -> Problem | None:
    """Return the first fault of a table's shards: where they are, what they cover, how they are cut, and how wide."""
    return (
        _device_problem(placement, devices.num_devices)
        or _range_problem(placement, rows, columns)
        or _cut_problem(placement, rows, columns, devices)
        or _width_problem(placement, kind)
    )


def unrepaired_widths(tables: Sequence[TablePlacement], request: PlanRequest) -> Iterator[str]:
    """Yield a sentence for each table whose shards need a newer release of FBGEMM than others do.

    None where the request names a width: who names one knows the limit.
    """
    if request.constraints.max_shard_width is not None:
        return
    for placement, table in zip(tables, request.tables.tables, strict=True):
        most, width = request.widest_shard(table), max(shard.num_columns for shard in placement.shards)
        if most is not None and width > most and placement.compute_kernel is not ComputeKernel.DENSE:
            yield (
                f"tables: {placement.name!r} has a shard of {width:,} columns, for which FBGEMM before 1.7 returns "
                f"zeros on CUDA devices; hint: train with 1.7 or newer, or allow shards of {most:,} columns"
            )


def local_size_problem(tables: Sequence[TablePlacement], topology: Topology, local_world_size: int) -> str | None:
    """Return the reason that nodes of another size than the plan's cannot run it. None: they can.

    TorchRec finds the node of a rank by dividing it by the processes per node, so that another number moves the shards
    of every table that is cut by node.
    """
    table = next((table for table in tables if table.sharding_type.is_by_node), None)
    if table is None or local_world_size == topology.devices_per_node:
        return None
    return (
        f"table {table.name!r} is {table.sharding_type.value} on nodes of {topology.devices_per_node} devices, "
        f"LOCAL_WORLD_SIZE is {local_world_size}; hint: start {topology.devices_per_node} processes on each node, "
        f"or plan again for nodes of {local_world_size}"
    )


def pod_size_problem(tables: Sequence[TablePlacement], topology: Topology, found: str | None) -> str | None:
    """Return the reason that ranks with this pod size cannot run a plan. None: they can.

    TorchRec deals the rows of a node out to the ranks of that many nodes. Source: get_topology_group_world_size of
    TorchRec 1.9.

    Args:
        tables: of the plan.
        topology: of the plan.
        found: the variable POD_SIZE_VARIABLE. None: it is not set, which is 1.
    """
    table = next((table for table in tables if table.sharding_type.is_by_node), None)
    planned = topology.nodes_per_domain
    if table is None or (found or "1") == str(planned):
        return None
    return (
        f"table {table.name!r} is {table.sharding_type.value} on domains of {planned} nodes, {POD_SIZE_VARIABLE} is "
        f"{found or 'not set, which is 1'}; hint: set it to {planned} for all ranks, or plan again for such domains"
    )


def replicated_optimizer_problem(name: str, optimizer: Optimizer) -> str | None:
    """Return the problem of a data_parallel table under an optimizer. None: it can be trained."""
    if optimizer in REPLICATED_OPTIMIZERS:
        return None
    return (
        f"table {name!r} is data_parallel, which {optimizer.value} does not train as the fused kernels do: moments of "
        f"rows without a gradient would decay"
        f"; hint: use one of {', '.join(REPLICATED_OPTIMIZERS)}, or shard it table_wise"
    )


def cuts_means(kind: ShardingType, table: Table) -> bool:
    """Return whether rows of a table of mean pooling would be on several devices, which add up parts of its bags.

    TorchRec then divides the joined output of the collection by bag lengths (`_has_mean_pooling_callback` of its
    ShardedEmbeddingBagCollection): rightly where all its tables are means and `BY_ROWS`, and never under grid_shard.
    """
    return table.is_mean and (kind in BY_ROWS or kind is ShardingType.GRID)


def sharding_problem(kind: ShardingType, table: Table, request: PlanRequest) -> str | None:
    """Return the obstacle to all placements of this kind, whatever the other tables are. None: there is none."""
    if _has_empty_block(kind, table.num_embeddings, request.topology):
        return f"{kind} leaves a device without a row"
    if kind not in CUT_BY_COLUMNS:
        problem = width_problem(request.topology.device.kind, table.embedding_dim, release=None)
        if problem is not None:
            return f"the table {problem}"
    if kind is ShardingType.DATA_PARALLEL:
        return _replicated_problem(table, request.optimizer_of(table))
    return _sequence_by_node_problem(kind, table)


def _has_empty_block(kind: ShardingType, num_rows: int, devices: Devices) -> bool:
    """Return whether blocks of rows leave a device without one, for which FBGEMM has no kernel."""
    if kind is not ShardingType.ROW_WISE and not kind.is_by_node:
        return False
    num_parts = devices.devices_per_domain if kind.is_by_node else devices.num_devices
    return -(-num_rows // num_parts) * (num_parts - 1) >= num_rows


def _device_problem(placement: TablePlacement, num_devices: int) -> Problem | None:
    for index, shard in enumerate(placement.shards):
        if shard.device >= num_devices:
            return (
                f".shards[{index}].device",
                f"device {shard.device} does not exist; the topology has devices 0 to {num_devices - 1}",
            )
    return None


def _range_problem(placement: TablePlacement, rows: int, columns: int) -> Problem | None:
    for index, shard in enumerate(placement.shards):
        row_end, column_end = shard.row_offset + shard.num_rows, shard.column_offset + shard.num_columns
        if row_end > rows or column_end > columns:
            return (
                f".shards[{index}]",
                (
                    f"reaches row {row_end} and column {column_end}, the table has {rows} x {columns}"
                    f"; hint: keep within it"
                ),
            )
    return None


def _cut_problem(placement: TablePlacement, rows: int, columns: int, devices: Devices) -> Problem | None:
    kind, shards = placement.sharding_type, placement.shards
    match kind:
        case ShardingType.TABLE_WISE | ShardingType.COLUMN_WISE:
            return _cover_problem(shards, rows, columns) or _columns_problem(kind, shards, rows)
        case ShardingType.DATA_PARALLEL:
            everywhere = sorted(shard.device for shard in shards) == list(range(devices.num_devices))
            whole = all((shard.num_rows, shard.num_columns) == (rows, columns) for shard in shards)
            return None if everywhere and whole else _misnamed(kind, "the whole table on every device")
        case ShardingType.ROW_WISE | ShardingType.TABLE_ROW_WISE:
            return _full_rows_problem(kind, shards, rows, columns, devices)
        case ShardingType.GRID:
            return _grid_problem(shards, rows, columns, devices)


def _columns_problem(kind: ShardingType, shards: Sequence[Shard], rows: int) -> Problem | None:
    if kind is ShardingType.TABLE_WISE:
        return None if len(shards) == 1 else _misnamed(kind, "one shard")
    fits = len(shards) > 1 and all(shard.num_rows == rows for shard in shards)
    return None if fits else _misnamed(kind, "two or more shards, each with all rows")


def _full_rows_problem(
    kind: ShardingType, shards: Sequence[Shard], rows: int, columns: int, devices: Devices
) -> Problem | None:
    is_full = all(shard.num_columns == columns for shard in shards)
    if kind is ShardingType.ROW_WISE:
        if not is_full:
            return _misnamed(kind, "shards with all columns")
        return _rows_problem(kind, shards, rows, first_device=0, num_devices=devices.num_devices)
    if not is_full or len(_nodes(shards, devices)) > 1:
        return _misnamed(kind, "shards with all columns on one node")
    return _node_problem(kind, shards, rows, devices)


def _cover_problem(shards: Sequence[Shard], rows: int, columns: int) -> Problem | None:
    """Return the problem of shards by columns that do not cover each cell exactly once. None: they do."""
    order = sorted(range(len(shards)), key=lambda index: shards[index].column_offset)
    for left, right in pairwise(order):
        if shards[left].column_offset + shards[left].num_columns > shards[right].column_offset:
            first, second = sorted((left, right))
            return ".shards", f"shards {first} and {second} overlap; each cell belongs to one shard"
    covered = sum(shard.num_rows * shard.num_columns for shard in shards)
    return (
        None
        if covered == rows * columns
        else (".shards", f"cover {covered} of {rows * columns} cells; hint: close the gap")
    )


def _grid_problem(shards: Sequence[Shard], rows: int, columns: int, devices: Devices) -> Problem | None:
    blocks: dict[tuple[int, int], list[Shard]] = {}
    for shard in shards:
        blocks.setdefault((shard.column_offset, shard.num_columns), []).append(shard)
    end = 0
    for offset, width in sorted(blocks):
        if offset != end:
            found = f"columns {offset} to {offset + width} follow column {end}"
            return ".shards", f"grid_shard means blocks of columns that cover the table once; {found}, cut them again"
        block = blocks[offset, width]
        if len(_nodes(block, devices)) > 1:
            return _misnamed(
                ShardingType.GRID, f"every block of columns on one node (columns {offset} to {end + width})"
            )
        problem = _node_problem(ShardingType.GRID, block, rows, devices)
        if problem is not None:
            return problem
        end += width
    if end != columns:
        return ".shards", f"the blocks have {end} of {columns} columns; hint: close the gap"
    return None


def _node_problem(kind: ShardingType, shards: Sequence[Shard], rows: int, devices: Devices) -> Problem | None:
    first = min(_nodes(shards, devices)) * devices.devices_per_domain
    return _rows_problem(kind, shards, rows, first_device=first, num_devices=devices.devices_per_domain)


def _rows_problem(
    kind: ShardingType, shards: Sequence[Shard], rows: int, *, first_device: int, num_devices: int
) -> Problem | None:
    """Return the first difference of shards to the blocks of rows that get lookups. None: there is none."""
    found = {shard.device: (shard.row_offset, shard.num_rows) for shard in shards}
    blocks = enumerate(row_blocks(rows, num_devices), start=first_device)
    wanted = {device: block for device, block in blocks if block[1]}
    if len(shards) == len(found) and found == wanted:
        return None
    device = next(each for each in (*wanted, *found) if found.get(each) != wanted.get(each) or len(shards) > len(found))
    return ".shards", (
        f"{kind.value} on {num_devices} devices means blocks of {-(-rows // num_devices)} rows in the order of the "
        f"devices, since TorchRec sends lookups there whatever the shards are: device {device} holds "
        f"{_rows(wanted.get(device))}, found {_rows(found.get(device))}; hint: cut the table so, or by columns"
    )


def _width_problem(placement: TablePlacement, kind: DeviceKind) -> Problem | None:
    for index, shard in enumerate(placement.shards):
        problem = width_problem(kind, shard.num_columns, release=None)
        if problem is not None:
            return f".shards[{index}].num_columns", problem
    return None


def release_problem(tables: Sequence[TablePlacement], request: PlanRequest, release: Release) -> str | None:
    """Return the first shard that the kernels of a release of FBGEMM do not compute rightly. None: there is none."""
    for index, (placement, table) in enumerate(zip(tables, request.tables.tables, strict=True)):
        has_pooling = not table.is_sequence and placement.compute_kernel is not ComputeKernel.DENSE
        for shard in placement.shards:
            problem = width_problem(
                request.topology.device.kind, shard.num_columns, has_pooling=has_pooling, release=release
            )
            if problem is not None:
                return f"tables[{index}].shards: a shard of table {table.name!r} {problem}"
    return None


def block_order_problem(placement: TablePlacement) -> Problem | None:
    """Return the place of column blocks on one device in an order that TorchRec may fail to register.

    Source: _gen_named_parameters_by_table_fused of TorchRec 1.9 views all blocks of a table on a rank as that many of
    the
    first one's width, and raises on this rank alone where that reaches past the end of the rank's weights.
    """
    widths: dict[int, list[int]] = {}
    for shard in sorted(placement.shards, key=lambda shard: shard.column_offset):
        widths.setdefault(shard.device, []).append(shard.num_columns)
    for device, found in widths.items():
        if len(found) * found[0] > sum(found):
            return ".shards", (
                f"{placement.sharding_type} has blocks of {', '.join(map(str, found))} columns on device {device}, and "
                "TorchRec registers the first one's width for all; hint: begin with the narrowest, or use other devices"
            )
    return None


def _empty_block_problem(placement: TablePlacement, devices: Devices) -> Problem | None:
    """Return the place where a device takes part in a table without a row of it.

    A kernel of such tables alone raises on this rank: FBGEMM takes weights without elements for those of another kind
    of device. Next to other tables one crashed on a CPU.
    """
    missing = sorted(placement_devices(placement, devices) - {shard.device for shard in placement.shards})
    if not missing:
        return None
    return ".sharding_type", (
        f"{placement.sharding_type} leaves device {missing[0]} without a row, for which FBGEMM has no kernel; "
        "shard so small a table table_wise or data_parallel"
    )


def as_asked(placement: TablePlacement, request: PlanRequest) -> TablePlacement:
    """Return a table's placement under the type that the constraints name for it, as TorchRec is to get it.

    On few devices types come to others: by rows on one device is the whole table. A plan has the table as it is placed
    and priced; scripts, and checkpoints of other processes, expect the asked name.
    """
    asked = request.constraints.sharding_types_of(placement.name)
    kind = placement.sharding_type if asked is None else asked_type(placement.sharding_type, asked, request.topology)
    if kind is placement.sharding_type:
        return placement
    is_replicated = kind is ShardingType.DATA_PARALLEL
    kernel = {"kernel": ComputeKernel.DENSE} if is_replicated else {}
    return placement.model_copy(update={"sharding_type": kind, **kernel})


def kernel_obstacle(kernel: ComputeKernel, kind: ShardingType, topology: Topology) -> str | None:
    """Return the obstacle to a kernel for tables of a sharding type on these devices. None: there is none."""
    if kernel not in kernels_of(kind):
        return f"a {kind.value} table runs with {' or '.join(kernels_of(kind))}"
    if not kernel.is_on_host:
        return None
    if topology.device.is_cpu:
        return "and processes on a CPU have all tables in host memory with the kernel fused"
    if topology.host_memory is None:
        return "and the topology has no host_memory that tables may take"
    return None


def _lacks_memory(kernel: ComputeKernel, topology: Topology) -> bool:
    return kernel.is_on_host and topology.host_memory is None and not topology.device.is_cpu


def cache_problem(kernel: ComputeKernel, cache_load_factor: float | None) -> str | None:
    """Return the fault of a load factor with a kernel. None: there is none."""
    if kernel is ComputeKernel.FUSED_UVM_CACHING and cache_load_factor is None:
        return f"is missing, the kernel is {kernel}; hint: give rows of the cache over rows of the table"
    if kernel is not ComputeKernel.FUSED_UVM_CACHING and cache_load_factor is not None:
        return f"is {cache_load_factor:g}, the kernel {kernel} has no cache; hint: leave it out"
    return None


def _kernel_problem(placement: TablePlacement, table: Table, topology: Topology) -> Problem | None:
    kernel = placement.compute_kernel
    obstacle = kernel_obstacle(kernel, placement.sharding_type, topology)
    if obstacle is not None:
        remedy = "give topology.host_memory, or leave it out" if _lacks_memory(kernel, topology) else "leave it out"
        return ".kernel", f"is {kernel}, {obstacle}; hint: {remedy}"
    problem = cache_problem(kernel, placement.cache_load_factor)
    if problem is not None:
        return ".cache_load_factor", problem
    if placement.data_type not in {None, table.data_type}:
        return ".data_type", f"is {placement.data_type}, the table's is {table.data_type}; hint: leave it out"
    return None


def _sequence_problem(placement: TablePlacement, table: Table) -> Problem | None:
    problem = _sequence_by_node_problem(placement.sharding_type, table)
    return None if problem is None else (".sharding_type", problem)


def _sequence_by_node_problem(kind: ShardingType, table: Table) -> str | None:
    """Return the problem of a table without bags that is cut by node. Source: EmbeddingCollectionSharder."""
    if not (table.is_sequence and kind.is_by_node):
        return None
    return f"TorchRec shards no sequence {kind}; hint: shard it table_wise, column_wise, or row_wise"


def _replicated_table_problem(placement: TablePlacement, table: Table, optimizer: Optimizer) -> Problem | None:
    if placement.sharding_type is not ShardingType.DATA_PARALLEL:
        return None
    problem = _replicated_problem(table, optimizer)
    return None if problem is None else (".sharding_type", problem)


def _replicated_problem(table: Table, optimizer: Optimizer) -> str | None:
    """Return the obstacle to data_parallel for a table. None: there is none."""
    if table.data_type is not DataType.FP32:
        return (
            f"data_parallel weights of type {table.data_type} round otherwise than the fused kernels; "
            "store the table as FP32, or shard it table_wise"
        )
    return replicated_optimizer_problem(table.name, optimizer)


def collections_of(definitions: Sequence[Table]) -> Sequence[Sequence[int]]:
    """Return the positions of the tables of each collection."""
    found: dict[object, list[int]] = {}
    for index, table in enumerate(definitions):
        found.setdefault(table.collection_key, []).append(index)
    return list(found.values())


def _pooling_problems(
    tables: Sequence[TablePlacement], definitions: Sequence[Table], positions: Sequence[int]
) -> Iterator[str]:
    """Yield the first table of a collection whose bags TorchRec would average wrongly (see `cuts_means`)."""
    types = [tables[index].sharding_type for index in positions]
    cut = next((at for at, kind in zip(positions, types, strict=True) if cuts_means(kind, definitions[at])), None)
    has_means_alone = all(definitions[index].is_mean for index in positions)
    if cut is None or (has_means_alone and all(kind in BY_ROWS for kind in types)):
        return
    placement = tables[cut]
    by_rows = ", or all tables of the collection row_wise or table_row_wise" if has_means_alone else ""
    yield (
        f"tables[{cut}].sharding_type: {placement.name!r} has mean pooling and is {placement.sharding_type.value} next "
        "to others, for which TorchRec computes wrong values without an error; hint: shard it table_wise, "
        f"column_wise, or data_parallel{by_rows}"
    )


def _sequence_width_problems(
    tables: Sequence[TablePlacement], definitions: Sequence[Table], positions: Sequence[int]
) -> Iterator[str]:
    """Yield the first sequence of a collection that is cut to another width than its others have.

    FBGEMM raises on the devices alone that hold both: its kernel for tables without pooling takes one width.
    """
    sequences = [(index, tables[index]) for index in positions if definitions[index].is_sequence]
    widths = {shard.num_columns for _, placement in sequences for shard in placement.shards}
    cut = next((pair for pair in sequences if pair[1].num_column_blocks > 1), None)
    if cut is not None and len(widths) > 1:
        index, placement = cut
        yield (
            f"tables[{index}].shards: the sequence {placement.name!r} is cut by columns, and sequences have shards of "
            f"{', '.join(map(str, sorted(widths)))} columns, of which FBGEMM's kernel takes one width"
            f"; hint: leave it whole"
        )


def placement_devices(placement: TablePlacement, devices: Devices) -> set[int]:
    """Return the devices that take part in a table, those of empty blocks of rows too."""
    if placement.sharding_type is ShardingType.ROW_WISE:
        return set(range(devices.num_devices))
    holding = {shard.device for shard in placement.shards}
    if not placement.sharding_type.is_by_node:
        return holding
    size = devices.devices_per_domain
    return {device // size * size + local for device in holding for local in range(size)}


def _nodes(shards: Sequence[Shard], devices: Devices) -> set[int]:
    return {shard.device // devices.devices_per_domain for shard in shards}


def _rows(block: tuple[int, int] | None) -> str:
    return "no row" if block is None else f"rows {block[0]} to {block[0] + block[1]}"


def _misnamed(kind: ShardingType, expected: str) -> Problem:
    return ".sharding_type", f"{kind.value} means {expected}; the shards are cut otherwise, correct one of the two"

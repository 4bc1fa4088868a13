"""Why no plan fits, and the smallest change after which one does, as a sentence."""

import math
from bisect import bisect_left
from collections.abc import Mapping

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.job.variants import variants_in
from neuroshard_api.process.sizes import format_bytes, rounded_up

from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.memory.packing import Packing
from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.units import allowed_devices, num_usable_devices, resolve_units

MOST_NODES_FACTOR = 64  # stop looking for more devices beyond this many times the nodes
QUICK_NODES = 500  # of the packer while looking for a remedy; what it finds fits, a smaller change may do too
LAST_REMEDY = "lower batch_size_per_device, choose a smaller data type or optimizer, or loosen the constraints"
MORE = "give more devices or memory"
PRECISION = 0.01  # of the memory that a device would need


def has_room(request: PlanRequest) -> bool:
    """Return whether all memory together holds what the tables need at the least; a sum, without any search.

    True where a device has no memory for shards at all.

    Raises:
        RequestError: the request contradicts itself.
    """
    ledger = memory_ledger(request)
    allowed = allowed_devices(request, resolve_units(request))
    offered = num_usable_devices(allowed, request.topology.num_devices) * ledger.shard_capacity_bytes
    if may_be_on_host(request):
        offered += request.topology.num_nodes * ledger.host_capacity_bytes
    return ledger.shard_capacity_bytes <= 0 or int(ledger.least_bytes.sum()) <= offered


def infeasible(
    request: PlanRequest,
    packing: Packing,
    *,
    copy_bytes: Mapping[int, int],
    has_further_types: bool,
    may_be_by_columns: bool,
) -> InfeasibleError:
    """Return the error for a request that found no plan.

    Args:
        request: that nothing was found for.
        packing: of its units by columns.
        copy_bytes: memory on every device of each unit that may be data_parallel alone.
        has_further_types: whether some unit may be cut by rows or copied; it may need less than what is named.
        may_be_by_columns: whether all units may be. Otherwise what is enough by columns is not named.
    """
    cause, host = _cause(request, packing, copy_bytes), request.topology.host_memory
    if sum(copy_bytes.values()) > packing.capacity_bytes > 0:
        remedy = (
            "give these tables another sharding type too, or devices with more memory: more devices hold more copies"
        )
        return InfeasibleError(f"{cause}; hint: {remedy}{_fewer_variants(request)}")
    if may_be_on_host(request) and host is not None and packing.capacity_bytes > 0:
        further = ", rows, or copies" if has_further_types else ""
        return InfeasibleError(
            f"{cause}; and no plan by columns{further} was found with tables in {_size(host.bytes_per_node)} of host "
            f"memory per node; hint: {MORE} of either kind, or {LAST_REMEDY}{_fewer_variants(request)}"
        )
    others = f"{_fewer_variants(request)}{_host_remedy(request)}"
    if not has_further_types:
        return InfeasibleError(f"{cause}; hint: {_remedy(request, packing)}{others}")
    is_by_columns = packing.capacity_bytes > 0 and not copy_bytes
    tried = "; so it is by columns, and no plan with rows or copies was found" if is_by_columns else ""
    remedy = _remedy(request, packing, where="by columns, ") if may_be_by_columns else f"{MORE}, or {LAST_REMEDY}"
    return InfeasibleError(f"{cause}{tried}; hint: {remedy}{others}")


def may_be_on_host(request: PlanRequest) -> bool:
    """Return whether the constraints let some table be in host memory."""
    names = [table.name for table in request.tables.tables]
    kernels = [request.constraints.compute_kernels_of(name) or () for name in names]
    return any(kernel.is_on_host for own in kernels for kernel in own)


def _fewer_variants(request: PlanRequest) -> str:
    """Return the remedy of fewer variants, next to the dense part of all of them; empty where none is found."""
    variants = variants_in(request.tables.tables)

    def fits(count: int) -> bool:
        kept = tuple(each for each in request.tables.tables if each.name.partition(":")[0] in variants[:count])
        return _packs(request.model_copy(update={"tables": request.tables.model_copy(update={"tables": kept})}))

    count = bisect_left(range(1, len(variants)), x=True, key=lambda each: not fits(each)) if variants else 0
    return f"; or train {count} of the {len(variants)} variants in this job (spec.variants)" if count else ""


def _packs(request: PlanRequest) -> bool:
    """Return whether a packing by columns is found quickly."""
    try:
        packing = Packing(request)
    except RequestError:
        return False
    return packing.capacity_bytes > 0 and packing.pack(packing.capacity_bytes, max_nodes=QUICK_NODES) is not None


def _host_remedy(request: PlanRequest) -> str:
    """Return the remedy of tables in host memory, for devices that have memory of their own."""
    if request.topology.device.is_cpu:
        return ""
    if request.settings_of is not None:  # one field of a job gives the memory and permits its use
        return "; or store tables in host memory: set topology.host_memory"
    allow = "allow fused_uvm_caching in constraints.compute_kernels and give topology.host_memory"
    return f"; or store tables in host memory: {allow}"


def _cause(request: PlanRequest, packing: Packing, copy_bytes: Mapping[int, int]) -> str:
    tables = request.tables.tables
    ledger = memory_ledger(request)
    fixed = f"{_size(ledger.fixed_bytes)} of reserve, dense part and received embeddings"
    of_device = f"{_size(ledger.capacity_bytes)} less {fixed}"
    if packing.capacity_bytes <= 0:
        return f"no memory is left for shards on any device: {of_device}"
    offered = f"{_size(ledger.shard_capacity_bytes)} for shards ({of_device})"
    on_each = sum(copy_bytes.values())
    if on_each > packing.capacity_bytes:
        largest = max(copy_bytes, key=lambda unit: copy_bytes[unit])
        name = tables[packing.units[largest].tables[0]].name
        return (
            f"the tables that may be data_parallel alone need {_size(on_each)} on every device, a device offers "
            f"{offered}; the largest of them is {name!r} with {_size(copy_bytes[largest])}"
        )
    units = range(len(packing.units))
    by_columns = [unit for unit in units if unit not in copy_bytes]
    worst = max(by_columns, key=packing.least_shard_bytes, default=None)
    if worst is not None and packing.least_shard_bytes(worst) > packing.capacity_bytes:
        unit = packing.units[worst]
        what = f"table {tables[unit.tables[0]].name!r}"
        if len(unit.tables) > 1:
            what = f"the co-located group of {what} ({len(unit.tables)} tables)"
        how = f"even split into {unit.max_shards} shards" if unit.max_shards > 1 else "as it may not be split"
        return f"{what} needs {_size(packing.least_shard_bytes(worst))} on one device {how}, a device offers {offered}"
    bound = packing.overfull_device()
    if bound is not None:
        device, needed = bound
        which = "tables pinned to it" if packing.num_usable_devices > 1 else "tables, which may lie on no other,"
        return f"device {device}: the {which} need {_size(needed)}, it offers {offered}"
    of_copies = {unit: packing.num_devices * num_bytes for unit, num_bytes in copy_bytes.items()}
    of_all_devices = [of_copies.get(unit, packing.whole_bytes[unit]) for unit in units]
    total = sum(of_all_devices)
    largest = max(units, key=lambda unit: of_all_devices[unit])
    copies = f" in {packing.num_devices} copies" if largest in copy_bytes else ""
    which = f"{tables[packing.units[largest].tables[0]].name!r} with {_size(of_all_devices[largest])}{copies}"
    room = packing.num_usable_devices * packing.capacity_bytes
    if total > room:
        return (
            f"the tables need {_size(total)}, {packing.num_usable_devices} devices offer {_size(room)} "
            f"({offered} each); the largest table is {which}"
        )
    return (
        f"the tables need {_size(total)} of {_size(room)}, but no placement of them was found under the constraints; "
        f"the largest table is {which}, a device offers {offered}"
    )


def _remedy(request: PlanRequest, packing: Packing, *, where: str = "") -> str:
    """Return the changes that a plan by columns needs, after ``where`` if there is such a change."""
    remedies = []
    needed = least_capacity(packing, above_bytes=max(packing.capacity_bytes, 1))
    if needed is not None:
        per_device = memory_ledger(request).least_device_bytes(needed)
        enough_bytes = rounded_up(per_device)
        enough = _size(enough_bytes)
        limit = request.constraints.max_memory_bytes_per_device
        if limit is None:
            remedies.append(f"devices with {enough} of memory would do")
        elif enough_bytes <= request.topology.device.memory_bytes:
            remedies.append(f"constraints.max_memory_bytes_per_device of {enough} would do")
        else:
            remedies.append(f"devices with, and constraints.max_memory_bytes_per_device of, {enough} would do")
    nodes = _least_nodes(request, packing)
    if nodes is not None:
        devices = nodes * request.topology.devices_per_node
        layout = f" ({nodes} nodes)" if devices > nodes else ""
        remedies.append(f"{devices} devices{layout} of this kind would do")
    enough = f"{where}{', or '.join(remedies)}; " if remedies else ""
    return f"{enough}otherwise {LAST_REMEDY}"


def least_capacity(packing: Packing, *, above_bytes: int) -> int | None:
    """Return the least capacity per device, to PRECISION, at which the units pack. None: at none.

    Args:
        packing: the units.
        above_bytes: capacity at which they do not pack; at least 1.
    """
    total = sum(packing.whole_bytes)
    low = max(above_bytes, -(-total // packing.num_usable_devices) - 1)  # below it a device has more than the mean
    most = max(total, 2 * low)
    step = PRECISION
    while packing.pack(high := min(most, max(low + 1, int(low * (1 + step)))), max_nodes=QUICK_NODES) is None:
        if high == most:
            return None
        low, step = high, 2 * step
    while high > max(low * (1 + PRECISION), low + 1):
        middle = max(math.isqrt(low * high), low + 1)
        low, high = (low, middle) if packing.pack(middle, max_nodes=QUICK_NODES) is not None else (middle, high)
    return high


def _least_nodes(request: PlanRequest, packing: Packing) -> int | None:
    """Return the least number of nodes, more than now, on which the tables pack."""
    topology = request.topology
    of_node = topology.devices_per_node * packing.capacity_bytes
    least = -(-sum(packing.whole_bytes) // of_node) - 1 if of_node > 0 else 0  # a split never needs less

    def fits(num_nodes: int) -> bool:
        return _packs(request.model_copy(update={"topology": topology.with_nodes(num_nodes)}))

    low = max(topology.num_nodes, least)
    step = 1 if low > topology.num_nodes else topology.num_nodes
    high = low + step
    while not fits(high):
        step *= 2
        low, high = high, high + step
        if high > MOST_NODES_FACTOR * topology.num_nodes:
            return None
    return low + 1 + bisect_left(range(low + 1, high), x=True, key=fits)


def _size(num_bytes: float) -> str:
    """Return a size that is compared with others."""
    return format_bytes(num_bytes, digits=4)

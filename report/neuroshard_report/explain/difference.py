"""What changes from one plan to another: tables that move, bytes that move, and the parts of the step.

Groups of devices are written out, so that every shard is on a device of the cluster: plans with other groups, or with
other numbers of devices, can be compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import DeviceCost, TablePlacement
from neuroshard_api.documents.tables import Table
from neuroshard_costs.moved_bytes import received_bytes

COST_FIELDS = (
    *(name for name in DeviceCost.model_fields if name.endswith("_ms") and not name.startswith("server_")),
    "server_exposed_ms",
)
"""Terms of a device's cost, which sum to its total."""
MAX_VALUE_LENGTH = 60
"""Characters of a value of a request that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableChange:
    """A table that has other shards."""

    name: str
    before: TablePlacement
    after: TablePlacement
    moved_bytes: int
    """Weights and optimizer state that devices get and did not have; 0 where copies are dropped alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartChange:
    """One part of the step, on the device that decides it."""

    field: str
    """Of a device's cost."""
    before_ms: float
    after_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceChange:
    """One device. None: it is not in that plan, or that plan has no price."""

    device: int
    before_ms: float | None
    after_ms: float | None
    before_bytes: int | None
    """Memory, the reserve included."""
    after_bytes: int | None
    received_bytes: int
    """Weights and optimizer state that it gets and did not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldChange:
    """A field of the request that differs. None: it is not set, or too long to show."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanPrice:
    """The price of one of the two plans."""

    total_ms: float
    step_ms: float | None
    """Of a whole step; its lower limit where the dense part is not counted. None: not known."""
    lower_bound_ms: float
    source: str
    slowest_device: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDifference:
    """What changes from one plan to another."""

    name: str
    """Of the model."""
    before: PlanPrice | None
    """None, and after: the plan has no price."""
    after: PlanPrice | None
    has_equal_costs: bool
    """Whether the same cost models priced both, so that their times can be compared."""
    parts: tuple[PartChange, ...]
    """Those with the largest change first, without those that neither plan has. Empty: a plan has no price."""
    num_tables: int
    """In both plans."""
    tables: tuple[TableChange, ...]
    """Those with most bytes first."""
    moved_bytes: int
    all_bytes: int
    """Weights and optimizer state of the later plan's shards, of the tables in both."""
    devices: tuple[DeviceChange, ...]
    removed: tuple[str, ...]
    """Tables of the earlier plan alone."""
    added: tuple[str, ...]
    """Tables of the later plan alone."""
    reshaped: tuple[str, ...]
    """Tables with other rows, columns, or type of their weights, whose bytes are not compared."""
    asked: tuple[FieldChange, ...]
    """Fields of the request that differ, but for the tables."""


def plan_difference(before: GivenPlan, after: GivenPlan) -> PlanDifference:
    """Return the changes from one plan to another, with prices or without."""
    earlier, later = _tables(before), _tables(after)
    both = [name for name in later if name in earlier]
    alike = [name for name in both if _shape(earlier[name][0]) == _shape(later[name][0])]
    received = {
        name: received_bytes(earlier[name][1], later[name][1], later[name][0], request=after.request) for name in alike
    }
    empty = {name: received_bytes(None, later[name][1], later[name][0], request=after.request) for name in alike}
    moved = [
        TableChange(
            name=name, before=earlier[name][1], after=later[name][1], moved_bytes=round(sum(received[name].values()))
        )
        for name in alike
        if earlier[name][1] != later[name][1]
    ]
    prices = (_price(before), _price(after))
    return PlanDifference(
        name=after.request.tables.name,
        before=prices[0],
        after=prices[1],
        has_equal_costs=isinstance(before, Plan) and isinstance(after, Plan) and before.bundle == after.bundle,
        parts=_parts(before, after) if isinstance(before, Plan) and isinstance(after, Plan) else (),
        num_tables=len(both),
        tables=tuple(sorted(moved, key=lambda each: -each.moved_bytes)),
        moved_bytes=sum(each.moved_bytes for each in moved),
        all_bytes=round(sum(sum(each.values()) for each in empty.values())),
        devices=_devices(before, after, list(received.values())),
        removed=tuple(name for name in earlier if name not in later),
        added=tuple(name for name in later if name not in earlier),
        reshaped=tuple(name for name in both if name not in alike),
        asked=_asked(before, after),
    )


def _tables(plan: GivenPlan) -> dict[str, tuple[Table, TablePlacement]]:
    """Return the tables of a plan by name, with their shards on all groups of devices; after these, on servers."""
    pairs = zip(plan.resolved.tables.tables, plan.tables, strict=True)
    found = {table.name: (table, _written_out(placement, plan.groups)) for table, placement in pairs}
    served = plan.of_servers
    if served is None:
        return found
    processes = [tuple(range(plan.num_devices, plan.num_devices + plan.num_server_processes))]
    placed = zip(served.request.tables.tables, served.tables, strict=True)
    return found | {table.name: (table, _written_out(placement, processes)) for table, placement in placed}


def _written_out(placement: TablePlacement, groups: Sequence[Sequence[int]]) -> TablePlacement:
    shards = tuple(
        shard.model_copy(update={"device": members[shard.device]}) for members in groups for shard in placement.shards
    )
    return placement.model_copy(update={"shards": shards})


def _shape(table: Table) -> tuple[object, ...]:
    return table.num_embeddings, table.embedding_dim, table.data_type


def _price(plan: GivenPlan) -> PlanPrice | None:
    if not isinstance(plan, Plan):
        return None
    return PlanPrice(
        total_ms=plan.predicted.total_ms,
        step_ms=None if plan.step is None else plan.step.total_ms,
        lower_bound_ms=plan.lower_bound_ms,
        source=plan.predicted.source,
        slowest_device=plan.slowest_device,
    )


def _parts(before: Plan, after: Plan) -> tuple[PartChange, ...]:
    first, second = (plan.predicted.devices[plan.slowest_device] for plan in (before, after))
    found = [
        PartChange(field=field, before_ms=getattr(first, field) or 0.0, after_ms=getattr(second, field) or 0.0)
        for field in COST_FIELDS
    ]
    shown = [each for each in found if each.before_ms or each.after_ms]
    return tuple(sorted(shown, key=lambda each: -abs(each.after_ms - each.before_ms)))


def _devices(before: GivenPlan, after: GivenPlan, received: Sequence[Mapping[int, float]]) -> tuple[DeviceChange, ...]:
    earlier, later = _holders(before), _holders(after)
    return tuple(
        DeviceChange(
            device=device,
            before_ms=earlier.get(device, _NOTHING)[0],
            after_ms=later.get(device, _NOTHING)[0],
            before_bytes=earlier.get(device, _NOTHING)[1],
            after_bytes=later.get(device, _NOTHING)[1],
            received_bytes=round(sum(each.get(device, 0.0) for each in received)),
        )
        for device in range(max(before.num_devices, after.num_devices))
    )


_NOTHING = (None, None)


def _holders(plan: GivenPlan) -> dict[int, tuple[float | None, int | None]]:
    """Return the time and the memory of each device of all groups; none of a plan without a price."""
    if not isinstance(plan, Plan):
        return {}
    return {
        device: (plan.predicted.devices[position].total_ms, plan.memory[position].used_bytes)
        for members in plan.groups
        for position, device in enumerate(members)
    }


def _asked(before: GivenPlan, after: GivenPlan) -> tuple[FieldChange, ...]:
    first, second = (
        each.request.model_dump(mode="json", exclude={"tables", "settings_of", "refused_levers"})
        for each in (before, after)
    )
    return tuple(_changed(first, second))


def _changed(before: Mapping[str, object], after: Mapping[str, object], path: str = "") -> Iterator[FieldChange]:
    """Yield the values that differ by their paths; a part that one of the two does not have is one value."""
    for name in dict.fromkeys((*before, *after)):
        first, second = before.get(name), after.get(name)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            yield from _changed(first, second, f"{path}{name}.")
        elif first != second:
            yield FieldChange(field=f"{path}{name}", before=_shown(first), after=_shown(second))


def _shown(value: object) -> str | None:
    text = None if value is None else str(value)
    if text is None or len(text) <= MAX_VALUE_LENGTH:
        return text
    return "set" if isinstance(value, Mapping) else None

"""Why a table is where it is, under the cost models that placed it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import Algorithm, Constraints
from neuroshard_api.documents.tables import Table
from neuroshard_api.process.sizes import format_bytes
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_costs.shards import COLUMNS, IndexArray
from neuroshard_planner.errors import PlanError, RequestError
from neuroshard_planner.planning import Bundle
from neuroshard_planner.plans.checks import require_sound
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.units import Unit, even_widths

from neuroshard_report.explain.alone import of_group, without_servers
from neuroshard_report.explain.alternatives import PlacementWithoutUnit
from neuroshard_report.explain.step import once_text
from neuroshard_report.explain.stored_types import stored_type_of

NEGLIGIBLE = 5e-4  # of a step; smaller differences are not told apart


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardExplanation:
    """One shard of the table, or of its co-located group."""

    device: int
    num_columns: int
    memory_bytes: int
    """Weights, optimizer state, pooled embeddings, gradients and inputs."""
    alone_ms: float
    """Forward and backward compute of the shard on an empty device."""
    adds_ms: float
    """Compute of its device with the shard minus without it: less than alone, fused kernels share their overhead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherPlacement:
    """Another way to place the table, all other tables staying where they are."""

    devices: tuple[int, ...]
    """One per shard; empty where there is an obstacle that has no place."""
    num_shards: int
    total_ms: float | None = None
    """The plan's cost then; None where an obstacle forbids it."""
    change: float | None = None
    """Share by which the step would grow (0.02 is 2 %) or, negative, shrink."""
    obstacle: str | None = None
    """A sentence; None where it is possible."""
    sharding_type: ShardingType | None = None
    """How the table would be cut by rows, or copied. None: whole or by columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AddedPart:
    """What a table adds to a part of the step, all other tables staying where they are."""

    name: str
    """Compute of a pass, a collective in both directions, or dense updates."""
    ms: float
    """Negative where the part gets shorter with the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostShare:
    """What a table has in host memory, and what that takes."""

    kernel: ComputeKernel
    num_bytes: int
    """All shards."""
    cache_load_factor: float | None
    """Rows of its cache over its rows. None: it has no cache."""
    added_ms: float
    """Time for host memory in both passes, of the shard with most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableExplanation:
    """One table of a plan."""

    name: str
    collection: str | None
    """Path of its collection in the model. None: the table names none."""
    together_with: tuple[str, ...]
    """Other tables of its co-located group, which all numbers here include."""
    sharding_type: ShardingType
    compute_kernel: ComputeKernel
    parts: tuple[AddedPart, ...]
    """Largest first. They sum to the plan's cost less that without the table, time for host memory included."""
    next_best: OtherPlacement | None
    """The cheapest of moves, splits, and conversions. None: nothing else is possible."""
    shards: tuple[ShardExplanation, ...]
    memory_bytes: int
    """All shards."""
    alone_ms: float
    """Forward and backward compute of the whole table on an empty device."""
    on_host: HostShare | None
    """None: the table is in device memory. Moves and splits are to device memory."""
    plan_total_ms: float
    moves: tuple[OtherPlacement, ...]
    """Whole on each device where it is not whole already, in the order of the devices."""
    splits: tuple[OtherPlacement, ...]
    """In one shard fewer and in one more by columns."""
    conversions: tuple[OtherPlacement, ...]
    """The best placement of each other type that the constraints allow, by rows or as copies."""
    constraints: tuple[str, ...]
    """Sentences: what the request says about this table."""
    repeats: str | None
    """A sentence: the table's duplication group, its factor, and whether its repeats are left out. None: not known."""
    stored_type: str | None
    """A sentence: the type that the plan chose for the table, or why its own. None: there was no choice."""
    verdict: str
    """One sentence: why it stays, or what would be better."""


def explain_table(plan: Plan, name: str, *, bundle: Bundle) -> TableExplanation:
    """Explain one table of a plan: with groups within one, without averages; with servers without the wait for them.

    Raises:
        PlanError: the plan has problems, or was made with another bundle.
        RequestError: there is no such table.
    """
    plan = of_group(without_servers(plan))
    problem, placement = rebuilt(plan, bundle)
    index = _position(plan, name)
    unit = next(unit for unit, definition in enumerate(problem.units) if index in definition.tables)
    without = PlacementWithoutUnit(problem, placement, unit)
    total_ms = plan.predicted.total_ms
    shards = _shards(problem, placement, unit)
    moves = moves_of(problem, without, [shard.device for shard in shards], total_ms)
    is_own = problem.kinds.unit[placement.kinds] == unit
    own = placement.kinds[is_own]
    is_by_columns = bool((problem.kinds.family[own] == COLUMNS).all())
    splits = splits_of(problem, without, unit, len(shards) if is_by_columns else 1, total_ms)
    conversions = _conversions(without, plan.tables[index].sharding_type, total_ms)
    definition = problem.units[unit]
    names = [plan.request.tables.tables[table].name for table in definition.tables]
    return TableExplanation(
        name=name,
        collection=plan.request.tables.tables[index].collection,
        together_with=tuple(each for each in names if each != name),
        sharding_type=plan.tables[index].sharding_type,
        compute_kernel=plan.tables[index].compute_kernel,
        parts=_parts(without, own, placement.devices[is_own]),
        next_best=next_best_of([*moves, *splits, *conversions]),
        shards=shards,
        memory_bytes=sum(shard.memory_bytes for shard in shards),
        alone_ms=float(problem.compute_ms(problem.kinds.representation[problem.whole[[unit]]]).sum()),
        on_host=_on_host(problem, own, plan.tables[index]),
        plan_total_ms=total_ms,
        moves=moves,
        splits=splits,
        conversions=conversions,
        constraints=tuple(_constraints(plan, definition, names)),
        repeats=repeats_of(plan, plan.request.tables.tables[index]),
        stored_type=stored_type_of(plan, name),
        verdict=_verdict(plan, shards, moves, splits, conversions),
    )


def _parts(without: PlacementWithoutUnit, kinds: IndexArray, devices: IndexArray) -> tuple[AddedPart, ...]:
    added = without.added_ms(kinds, devices).items()
    return tuple(AddedPart(name=name, ms=ms) for name, ms in sorted(added, key=lambda each: -each[1]))


def next_best_of(alternatives: Sequence[OtherPlacement]) -> OtherPlacement | None:
    """Return the alternative with the cheapest plan. None: none is possible."""
    possible = [each for each in alternatives if each.change is not None]
    return min(possible, key=lambda each: (each.change or 0.0, each.devices), default=None)


def _on_host(problem: Problem, kinds: IndexArray, placement: TablePlacement) -> HostShare | None:
    if not placement.compute_kernel.is_on_host:
        return None
    return HostShare(
        kernel=placement.compute_kernel,
        num_bytes=int(problem.kinds.host_bytes[kinds].sum()),
        cache_load_factor=placement.cache_load_factor,
        added_ms=float(problem.host_ms(problem.kinds.representation[kinds]).sum(axis=1).max()),
    )


def repeats_of(plan: Plan, table: Table) -> str | None:
    """Return a sentence on a table's repeated lists and the plan's use of them."""
    name, factor = table.duplication_group, table.duplication_factor
    if factor is None:
        return None
    if name is None:
        return f"{factor:.2f} samples per distinct list; in no group"
    known = f"group {name!r}, {factor:.2f} samples per distinct list in runs of {plan.request.tables.session_run}"
    found = next((each for each in plan.deduplication or () if each.group == name), None)
    if found is None:
        return f"{known}; all lists are looked up{_why_all_lists(plan, name)}"
    saved = "" if found.saved_ms is None else f", which saves {found.saved_ms:.3g} ms of the step"
    left_out = f"{known}; repeats are left out ({found.form.value}, factor {found.factor:.2f} in a batch){saved}"
    if found.product_saved_ms is None:
        return left_out
    return f"{left_out}; {once_text('their part', found.product_saved_ms)}"


def _why_all_lists(plan: Plan, group: str) -> str:
    """Return the reason that all lists of a group are looked up, as a clause; empty where no other was permitted."""
    if group not in (plan.request.deduplicate or ()):
        return ""
    if plan.deduplication is not None:
        return ": leaving its repeats out saves nothing"
    tried = [each for choice in plan.choices or () if choice.name is ChoiceName.REPEATS for each in choice.alternatives]
    return f": {tried[-1].refusal}" if tried and tried[-1].refusal else ""


def rebuilt(plan: Plan, bundle: Bundle) -> tuple[Problem, Placement]:
    """Return the problem that a plan answers, and its placement; also of one that does not fit into memory.

    Raises:
        PlanError: the plan has other problems, or its costs are another bundle's.
    """
    require_sound(plan, must_fit=False)
    if bundle.manifest.weights_sha256 != plan.bundle.weights_sha256:
        raise PlanError(
            f"bundle: the plan's costs are by {plan.bundle.name!r} ({plan.bundle.weights_sha256[:12]}...), given is "
            f"{bundle.manifest.name!r} ({bundle.manifest.weights_sha256[:12]}...)"
            "; hint: give the bundle of the plan with --bundle"
        )
    problem = Problem(plan.resolved, bundle)
    return problem, placement_of(plan.tables, problem)


def _position(plan: Plan, name: str) -> int:
    names = [table.name for table in plan.tables]
    if name not in names:
        close = get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"the first of them is {names[0]!r}"
        raise RequestError(f"table: there is no {name!r} among the plan's {len(names)} tables; hint: {hint}")
    return names.index(name)


def _shards(problem: Problem, placement: Placement, unit: int) -> tuple[ShardExplanation, ...]:
    own = np.flatnonzero(problem.kinds.unit[placement.kinds] == unit)
    kinds, devices = placement.kinds[own], placement.devices[own]
    representation = problem.kinds.representation
    with_it = problem.device_sums(placement.kinds, placement.devices)[devices]
    empty = np.bincount(placement.devices, minlength=problem.num_devices)[devices] == 1
    without_it = np.maximum(with_it - representation[kinds], 0.0)
    without_it[empty] = 0.0
    alone = problem.compute_ms(representation[kinds]).sum(axis=1)
    adds = problem.compute_ms(with_it).sum(axis=1) - problem.compute_ms(without_it).sum(axis=1)
    return tuple(
        ShardExplanation(
            device=int(devices[row]),
            num_columns=int(problem.kinds.num_columns[kind]),
            memory_bytes=int(problem.kinds.memory_bytes[kind]),
            alone_ms=float(alone[row]),
            adds_ms=float(adds[row]),
        )
        for row, kind in enumerate(kinds.tolist())
    )


def moves_of(
    problem: Problem, without: PlacementWithoutUnit, devices: Sequence[int], total_ms: float
) -> tuple[OtherPlacement, ...]:
    """Return the unit that was taken out whole on each device, but for one that it was whole on."""
    whole = without.kind(problem.units[without.unit].num_columns)
    totals, missing = without.totals_with(whole), without.missing_bytes(whole)
    moves = []
    for device in range(problem.num_devices):
        if list(devices) == [device]:
            continue
        if ShardingType.TABLE_WISE not in problem.sharding_types[without.unit]:
            obstacle = "its sharding_types do not have table_wise"
        elif not without.allowed[device]:
            obstacle = "the constraints do not allow it there"
        elif is_too_wide(problem.units[without.unit], 1):
            obstacle = _too_wide(problem.units[without.unit], 1)
        elif missing[device] > 0:
            obstacle = f"the device lacks {format_bytes(missing[device])} of memory for it"
        else:
            moves.append(_possible((device,), float(totals[device]), total_ms))
            continue
        moves.append(OtherPlacement(devices=(device,), num_shards=1, obstacle=obstacle))
    return tuple(moves)


def splits_of(
    problem: Problem, without: PlacementWithoutUnit, unit: int, num_shards: int, total_ms: float
) -> tuple[OtherPlacement, ...]:
    """Return the unit that was taken out in one shard fewer and in one more than it had."""
    splits = []
    for count in (num_shards - 1, num_shards + 1):
        if count < 1:
            continue
        obstacle = split_obstacle(problem.units[unit], count, int(without.allowed.sum()))
        found = None if obstacle else without.best_split(count)
        if found is None:
            reason = obstacle or f"fewer than {count} devices have memory for a shard of it"
            splits.append(OtherPlacement(devices=(), num_shards=count, obstacle=reason))
        else:
            splits.append(_possible(tuple(found[0].tolist()), found[1], total_ms))
    return tuple(splits)


def _conversions(without: PlacementWithoutUnit, current: ShardingType, total_ms: float) -> tuple[OtherPlacement, ...]:
    best: dict[ShardingType, OtherPlacement] = {}
    for kind, option in without.further_options():
        converted_ms = without.total_ms(option.kinds, option.devices)
        if kind is not current and (kind not in best or converted_ms < (best[kind].total_ms or np.inf)):
            found = _possible(tuple(option.devices.tolist()), converted_ms, total_ms)
            best[kind] = replace(found, sharding_type=kind)
    return tuple(best.values())


def split_obstacle(unit: Unit, count: int, num_allowed: int) -> str | None:
    """Return the obstacle to cutting a unit into a number of even shards, as a sentence. None: there is none."""
    if count > 1 and len(unit.tables) > 1:
        return "a co-located group is never split"
    if count > num_allowed:
        return f"only {num_allowed} devices may hold it"
    if even_widths(unit.num_columns, count)[-1] < unit.min_shard_width:
        return f"its {unit.num_columns} columns in {count} shards are narrower than {unit.min_shard_width} columns"
    if count > unit.max_shards:
        return f"the constraints allow {unit.max_shards} shards"
    return _too_wide(unit, count) if is_too_wide(unit, count) else None


def is_too_wide(unit: Unit, count: int) -> bool:
    """Return whether even shards of a table that may be cut are wider than kernels or constraints allow."""
    return unit.max_shards > 1 and even_widths(unit.num_columns, count)[0] > unit.max_shard_width


def _too_wide(unit: Unit, count: int) -> str:
    return f"its {unit.num_columns:,} columns in {count} shards are wider than {unit.max_shard_width:,} columns"


def _possible(devices: tuple[int, ...], total_ms: float, now_ms: float) -> OtherPlacement:
    change = total_ms / now_ms - 1
    return OtherPlacement(devices=devices, num_shards=len(devices), total_ms=total_ms, change=change)


def _constraints(plan: Plan, unit: Unit, names: Sequence[str]) -> Sequence[str]:
    constraints = plan.request.constraints
    sentences = []
    if len(names) > 1:
        sentences.append(f"a co-located group of {len(names)} tables is placed whole on one device: {_listed(names)}")
    most_of_all = constraints.max_shards_per_table
    for name in names:
        own = constraints.tables.get(name)
        if own is not None and own.devices is not None:
            sentences.append(f"constraints.tables.{name}.devices: only on {_devices(own.devices)}")
        if own is not None and own.max_shards is not None:
            sentences.append(f"constraints.tables.{name}.max_shards: at most {own.max_shards}")
            most_of_all = None
        if own is not None and own.min_shard_width is not None:
            sentences.append(f"constraints.tables.{name}.min_shard_width: {own.min_shard_width} columns or more")
        sentences += map(plan.request.in_its_names, _ways(constraints, name))
    if constraints.forbidden_devices:
        sentences.append(f"constraints.forbidden_devices: not on {_devices(constraints.forbidden_devices)}")
    if most_of_all is not None:
        sentences.append(f"constraints.max_shards_per_table: at most {most_of_all}")
    if len(names) == 1 and not unit.is_group and 2 * unit.min_shard_width > unit.num_columns:
        sentences.append(f"it cannot be split: {unit.num_columns} columns, at least {unit.min_shard_width} per shard")
    return sentences


def _ways(constraints: Constraints, name: str) -> Iterator[str]:
    """Yield a sentence for the sharding types and the kernels that a table may have, where constraints name them."""
    own = constraints.tables.get(name)
    fields = {
        "sharding_types": constraints.sharding_types_of(name),
        "compute_kernels": constraints.compute_kernels_of(name),
    }
    for field, allowed in fields.items():
        if allowed is not None:
            is_own = own is not None and getattr(own, field) is not None
            yield f"constraints.{f'tables.{name}.' if is_own else ''}{field}: only {', '.join(allowed)}"


def _verdict(
    plan: Plan,
    shards: Sequence[ShardExplanation],
    moves: Sequence[OtherPlacement],
    splits: Sequence[OtherPlacement],
    conversions: Sequence[OtherPlacement],
) -> str:
    here = f"stays on {_devices([shard.device for shard in shards])}"
    best = next_best_of([*moves, *splits, *conversions])
    if best is None:
        obstacles = dict.fromkeys(each.obstacle for each in (*moves, *splits) if each.obstacle)
        return f"{here}: nothing else is possible ({'; '.join(list(obstacles)[:3]) or 'there is no other device'})"
    if best.change is not None and best.change < -NEGLIGIBLE:
        way = f"{best.sharding_type} on" if best.sharding_type else "split over" if best.num_shards > 1 else "whole on"
        return (
            f"would be better {way} {_devices(best.devices)}: the step would shrink by {-100 * best.change:.1f} %, all "
            f"else staying; {plan.request.in_its_names(_why_dearer(plan, -best.change))}"
        )
    one_device = "any other device" if len(shards) == 1 else "one device alone"
    clauses = [
        _clause(one_device, _best(moves)),
        _clause("another number of shards", _best(splits)),
        _clause("rows or copies otherwise", _best(conversions)),
    ]
    return f"{here}: {', '.join(clause for clause in clauses if clause)}, all else staying"


def _why_dearer(plan: Plan, share: float) -> str:
    """Return the reason that a plan is dearer by that share than one with another place for one table."""
    if plan.algorithm is not Algorithm.NEUROSHARD:
        return f"{plan.algorithm} does not look for it: plan with {Algorithm.NEUROSHARD}"
    if plan.incumbent is not None:
        return "the plan stays near the one in force, since moves have a price"
    if share <= plan.request.search.shard_tolerance:
        return "the search gives up as much for fewer shards (search.shard_tolerance)"
    return "a larger search.work_budget may find it"


def _clause(what: str, best: tuple[float, tuple[int, ...]] | None) -> str | None:
    if best is None:
        return None
    change, devices = best
    if change < NEGLIGIBLE:
        return f"{what} would not lower the step ({_devices(devices)} would do as well)"
    return f"{what} would raise the step by at least {100 * change:.1f} %"


def _best(alternatives: Sequence[OtherPlacement]) -> tuple[float, tuple[int, ...]] | None:
    """Return the least change of the step and its devices; None where nothing is possible."""
    possible = [(each.change, each.devices) for each in alternatives if each.change is not None]
    return min(possible, default=None)


def _devices(devices: Sequence[int]) -> str:
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {_listed([str(each) for each in devices])}"


def _listed(names: Sequence[str]) -> str:
    most = 8  # a line's worth
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

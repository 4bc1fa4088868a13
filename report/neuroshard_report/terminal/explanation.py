"""Explanations of plans and tables for the terminal. Formats what explain.py and explain_plan.py found out."""

from collections.abc import Sequence

from neuroshard_api.process.sizes import format_bytes
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.explain.dense import ExplainedUnit
from neuroshard_report.explain.memory import OverfullDevice
from neuroshard_report.explain.moves import Move
from neuroshard_report.explain.plan import PlanExplanation, PlanMoves
from neuroshard_report.explain.served_table import ServedTableExplanation
from neuroshard_report.explain.table import AddedPart, HostShare, OtherPlacement, TableExplanation
from neuroshard_report.levers import lever_line
from neuroshard_report.quantities import format_ms, format_percent
from neuroshard_report.summary import index_ranges
from neuroshard_report.terminal.choices import choices_table
from neuroshard_report.terminal.collections import collections_table
from neuroshard_report.terminal.communication import narrow_tables
from neuroshard_report.terminal.tables import TextTable, fact_grid

MAX_MOVES = 12
MAX_SHARDS = 16
MAX_OVERFULL = 3
MAX_MOVED = 5
LEAST_SHOWN_MS = 5e-4
"""A part of a step that rounds to less than a thousandth is not shown."""


def render_plan_explanation(found: PlanExplanation) -> RenderableType:
    """Return the parts of the step, of the gap to its bound, and the changes that could help."""
    facts = [
        ("predicted", f"{format_ms(found.total_ms)} ms ({found.source})"),
        *([] if found.step is None else [("step", found.step)]),
        ("bound", f"{format_percent(found.gap)} above the lower bound of {format_ms(found.lower_bound_ms)} ms"),
        ("memory", _memory(found)),
        ("trust", found.trust),
        *([] if found.moves is None else [("moves", _moves(found.moves, found.total_ms))]),
        *([] if found.batch is None else zip(("chosen", "batches"), found.batch, strict=True)),
        *([] if found.stored_types is None else [("types", found.stored_types)]),
    ]
    terms = TextTable(
        columns=("the step's parts", "ms", "share", "decided by"),
        rows=tuple(
            (term.name, format_ms(term.ms), format_percent(term.share), f"device {term.device}") for term in found.terms
        ),
        text_columns=(0, 3),
    )
    modules = ("module",) if found.collections else ()
    tables = TextTable(
        columns=(f"most compute on device {found.busiest_device}, the busiest", *modules, "adds ms", "share", "shards"),
        rows=tuple(
            (
                table.name,
                *((table.collection or "",) if found.collections else ()),
                format_ms(table.adds_ms),
                format_percent(table.share),
                str(table.num_shards),
            )
            for table in found.dominant_tables
        ),
        text_columns=tuple(range(1 + len(modules))),
    )
    by_module = ("", collections_table(found.collections)) if found.collections else ()
    gap = TextTable(
        columns=("why it is above the lower bound", "ms"),
        rows=tuple((part.reason, format_ms(part.ms)) for part in found.gap_parts),
    )
    levers = (
        lever_line(each, now_ms=found.total_ms, num_samples=found.num_samples, is_waiting=found.is_waiting)
        for each in found.levers
    )
    helps = [Text(f"- {sentence}") for sentence in (*levers, *found.helps)]
    overfull = [part for each in found.overfull[:MAX_OVERFULL] for part in ("", *_overfull(each))]
    more = len(found.overfull) - MAX_OVERFULL
    if more > 0:
        overfull += ["", Text(f"and {more} more devices lack memory")]
    parts = (
        fact_grid(facts),
        *overfull,
        "",
        terms,
        "",
        tables,
        *by_module,
        *_dense_units(found.dense_units),
        *narrow_tables(found.communication, found.gradients),
        *choices_table(found.choices),
        "",
        gap,
        *(("", Text("What could help:"), *helps) if helps else ()),
    )
    return Group(*parts)


def _dense_units(units: Sequence[ExplainedUnit]) -> tuple[RenderableType, ...]:
    """Return the units of the dense part; nothing where it has no layout."""
    if not units:
        return ()
    rows = tuple(
        (
            each.module,
            str(each.count),
            each.kept,
            format_bytes(each.memory_bytes),
            format_ms(each.ms),
            "" if each.smaller is None else each.smaller,
            "" if each.smaller is None else f"-{format_bytes(each.saved_bytes)}",
            "" if each.smaller is None else f"{each.added_ms:+.3f}",
        )
        for each in units
    )
    columns = ("unit of the dense part", "modules", "kept", "memory", "ms", "next smaller option", "saves", "adds ms")
    return "", TextTable(columns=columns, rows=rows, text_columns=(0, 2, 5))


def _moves(moves: PlanMoves, total_ms: float) -> str:
    """Return the moves from the plan in force, with the largest tables."""
    before = f"{format_ms(moves.incumbent_ms)} ms under the plan in force, {format_ms(total_ms)} ms under this one"
    if not moves.tables:
        return f"{before}: nothing moves"
    shown = ", ".join(f"{name} ({format_bytes(size)})" for name, size in moves.tables[:MAX_MOVED])
    rest = len(moves.tables) - MAX_MOVED
    more = f", and {rest} more" if rest > 0 else ""
    return f"{before}: {format_bytes(moves.num_bytes)} move, of {shown}{more}"


def _memory(found: PlanExplanation) -> str:
    if not found.overfull:
        return f"device {found.fullest_device} is the fullest: {format_percent(found.memory_share)}"
    worst, count = found.overfull[0], len(found.overfull)
    devices = f"device {worst.device} lacks" if count == 1 else f"{count} devices lack memory, device {worst.device}"
    return (
        f"does not fit: {devices} {format_bytes(worst.over_bytes)} (needs {format_bytes(worst.used_bytes)} of "
        f"{format_bytes(worst.capacity_bytes)})"
    )


def _overfull(found: OverfullDevice) -> tuple[RenderableType, ...]:
    """Return the uses of a device's memory, and its largest tables."""
    purposes = tuple(
        (name, format_bytes(size), format_percent(size / found.used_bytes)) for name, size in found.purposes
    )
    tables = ", ".join(f"{name} ({format_bytes(size)})" for name, size in found.tables)
    return (
        TextTable(columns=(f"memory of device {found.device}", "needs", "share"), rows=purposes),
        Text(f"largest tables there, weights and optimizer state: {tables}"),
    )


def _on_host(share: HostShare) -> str:
    cache = "no cache"
    if share.cache_load_factor is not None:
        cache = f"a cache of {100 * share.cache_load_factor:.2f} % of its rows"
    return (
        f"{format_bytes(share.num_bytes)} with {share.kernel}, {cache}; {format_ms(share.added_ms)} ms for host memory "
        "on the device with most"
    )


def render_table_explanation(found: TableExplanation | ServedTableExplanation) -> RenderableType:
    """Return a table's place, its cost there, and its cost at every other place."""
    return _of_served(found) if isinstance(found, ServedTableExplanation) else _of_devices(found)


def _of_served(found: ServedTableExplanation) -> RenderableType:
    """Return the place of a table on servers, what it adds there, and the best place on devices."""
    (part,) = found.parts
    facts = [
        ("table", found.name),
        ("option", f"{found.sharding_type}; adds {format_ms(part.ms)} ms to {part.name}"),
        ("verdict", found.verdict),
        *([] if found.next_best is None else [("next best", _next_best(found, found.next_best))]),
        ("lookups", f"{found.lookups_per_sample:g} per sample"),
        ("memory", format_bytes(found.memory_bytes)),
    ]
    rows = tuple((shard.process, str(shard.num_columns)) for shard in found.shards[:MAX_SHARDS])
    parts: list[RenderableType] = [fact_grid(facts), "", TextTable(columns=("shard on", "columns"), rows=rows)]
    if len(found.shards) > MAX_SHARDS:
        parts.append(Text(f"and {len(found.shards) - MAX_SHARDS} more shards"))
    return Group(*parts)


def _of_devices(found: TableExplanation) -> RenderableType:
    facts = [
        ("table", found.name),
        ("option", f"{found.sharding_type}, kernel {found.compute_kernel}; {_added(found.parts)}"),
        ("verdict", found.verdict),
        *([] if found.next_best is None else [("next best", _next_best(found, found.next_best))]),
        ("memory", format_bytes(found.memory_bytes)),
        ("alone", f"{format_ms(found.alone_ms)} ms of compute on an empty device"),
    ]
    if found.collection is not None:
        facts.insert(1, ("module", found.collection))
    if found.on_host is not None:
        facts.insert(len(facts) - 1, ("host", _on_host(found.on_host)))
    if found.together_with:
        facts.insert(1, ("group", f"together with {', '.join(found.together_with)}; all numbers are the group's"))
    if found.stored_type is not None:
        facts.append(("type", found.stored_type))
    if found.repeats is not None:
        facts.append(("repeats", found.repeats))
    facts += [("constraint", sentence) for sentence in found.constraints]
    shards = TextTable(
        columns=("shard on device", "columns", "memory", "alone ms", "adds ms"),
        rows=tuple(
            (
                str(shard.device),
                str(shard.num_columns),
                format_bytes(shard.memory_bytes),
                format_ms(shard.alone_ms),
                format_ms(shard.adds_ms),
            )
            for shard in found.shards[:MAX_SHARDS]
        ),
    )
    parts: list[RenderableType] = [fact_grid(facts), "", shards]
    if len(found.shards) > MAX_SHARDS:
        parts.append(Text(f"and {len(found.shards) - MAX_SHARDS} more shards"))
    moves = sorted(found.moves, key=lambda move: (move.total_ms is None, move.total_ms or 0.0, move.devices))
    alternatives = [*moves[:MAX_MOVES], *found.splits, *found.conversions]
    if alternatives:
        rows = tuple(dict.fromkeys(map(_row, alternatives)))  # one shard more or fewer may be the table whole
        columns = ("if it were, all else staying", "step ms", "change", "why not")
        parts += ["", TextTable(columns=columns, rows=rows, text_columns=(0, 3))]
    if len(moves) > MAX_MOVES:
        parts.append(Text(f"and whole on {len(moves) - MAX_MOVES} more devices, none of them better"))
    return Group(*parts)


def _added(parts: Sequence[AddedPart]) -> str:
    """Return a table's share of the step, in sum and by parts that show."""
    total_ms = sum(part.ms for part in parts)
    shown = [f"{part.name} {format_ms(part.ms)}" for part in parts if abs(part.ms) >= LEAST_SHOWN_MS]
    return f"adds {format_ms(total_ms)} ms to the step" + (f": {', '.join(shown)}" if shown else "")


def _next_best(found: TableExplanation | ServedTableExplanation, best: OtherPlacement) -> str:
    """Return the cheapest other way and its difference in cost."""
    difference = (best.total_ms or 0.0) - found.plan_total_ms
    return f"{_place_of(best)}: {difference:+.3f} ms"


def render_moves(moves: Sequence[Move]) -> RenderableType:
    """Return the gains of moving a few tables, one after the other."""
    if not moves:
        return Text("No single table that is moved, whole or in even blocks of columns, would lower the step.")
    rows = tuple(
        (
            move.table,
            f"{move.from_type} on {index_ranges(move.from_devices)}",
            _place(move.devices, len(move.devices)),
            format_ms(move.total_ms),
            f"{100 * move.change:+.1f} %",
        )
        for move in moves
    )
    columns = ("moving, one after the other", "is", "would be", "step ms", "change")
    return TextTable(columns=columns, rows=rows, text_columns=(0, 1, 2))


def _row(alternative: OtherPlacement) -> tuple[str, ...]:
    where = _place_of(alternative)
    if alternative.total_ms is None or alternative.change is None:
        return where, "-", "-", alternative.obstacle or ""
    return where, format_ms(alternative.total_ms), f"{100 * alternative.change:+.1f} %", ""


def _place_of(alternative: OtherPlacement) -> str:
    if alternative.sharding_type is not None:
        return f"{alternative.sharding_type} on {index_ranges(sorted(set(alternative.devices)))}"
    return _place(alternative.devices, alternative.num_shards)


def _place(devices: Sequence[int], num_shards: int) -> str:
    if num_shards == 1:
        return f"whole on {devices[0]}" if devices else "whole on one device"
    return f"in {num_shards} shards" + (f" on {index_ranges(sorted(devices))}" if devices else "")

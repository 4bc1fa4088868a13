"""A plan for the terminal: a summary, a bar for each device, the split tables. Plain words when piped, no box art."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, IncumbentPlan
from neuroshard_api.process.sizes import format_bytes
from neuroshard_api.sharding.kinds import ShardingType
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from neuroshard_report.batch import batch_texts
from neuroshard_report.communication import communication_line, gradients_line
from neuroshard_report.explain.robustness import TrafficCost
from neuroshard_report.explain.step import once_per_list
from neuroshard_report.explain.stored_types import stored_types_text
from neuroshard_report.explain.trust import trust_text
from neuroshard_report.levers import lever_line, waits_for_host
from neuroshard_report.quantities import format_count, format_ms, format_percent
from neuroshard_report.summary import (
    DeviceView,
    PlanSummary,
    Quantiles,
    cost_terms,
    cost_terms_ms,
    index_ranges,
    summarize,
)
from neuroshard_report.terminal.collections import collections_table
from neuroshard_report.terminal.communication import narrow_tables
from neuroshard_report.terminal.tables import TextTable, fact_grid, plain_table

MAX_DEVICES = 16  # more devices are shown as extremes and quantiles
NUM_EXTREMES = 4
MAX_SPLIT_TABLES = 12
MIN_BAR_WIDTH = 8

_TERM_MARKS = (
    ("▓", "bright_blue"),
    ("░", "bright_black"),
    ("▚", "magenta"),
    ("▒", "bright_yellow"),
    ("▙", "yellow"),
    ("█", "blue"),
    ("▞", "cyan"),
    ("◆", "red"),
    ("▖", "bright_cyan"),
)
"""Cell and style of each of the cost terms; cells differ so that a terminal without colors tells them apart."""


def render_plan(plan: Plan, *, traffic: Sequence[TrafficCost] = ()) -> RenderableType:
    """Return the plan for a console; without colors, bars and lines where the console is not a terminal.

    With ``traffic``, also what the plan and the baselines cost under other traffic.
    """
    summary = summarize(plan)
    few = len(summary.devices) <= MAX_DEVICES
    parts: list[RenderableType] = [_headline(summary), Text()]
    if not few:
        parts += [_quantile_table(summary), Text()]
    shown = summary.devices if few else summary.extremes(NUM_EXTREMES)
    left_out = len(summary.devices) - len(shown)
    parts.append(
        _DeviceTable(devices=shown, terms=cost_terms(plan), total_ms=plan.predicted.total_ms, num_left_out=left_out)
    )
    if summary.servers:
        parts += [Text(), _servers(summary)]
    if summary.collectives:
        parts += [Text(), _collectives(summary)]
    if summary.collections:
        parts += [Text(), collections_table(summary.collections)]
    if summary.split_tables:
        parts += [Text(), _split_tables(summary)]
    if plan.deduplication:
        parts += [Text(), _deduplication(plan, plan.deduplication)]
    parts += narrow_tables(plan.communication, plan.gradients)
    total_ms, num_samples, is_waiting = plan.predicted.total_ms, plan.request.global_batch_size, waits_for_host(plan)
    if traffic:
        parts += [Text(), _other_traffic(traffic)]
    parts += [
        Text(f"would help: {lever_line(lever, now_ms=total_ms, num_samples=num_samples, is_waiting=is_waiting)}")
        for lever in plan.levers or ()
    ]
    parts += [Text(f"warning: {warning}", style="yellow") for warning in plan.warnings]
    return Group(*parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedBar:
    """Values as one bar of colored cells; as wide as its place."""

    values: Sequence[float]
    marks: Sequence[tuple[str, str]]
    """Cell and style of each value."""
    full: float
    """The value that fills the bar."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        reached, sum_of_values = 0, 0.0
        for value, (cell, style) in zip(self.values, self.marks, strict=True):
            sum_of_values += value
            end = round(width * sum_of_values / self.full) if self.full else 0
            yield Segment(cell * (end - reached), Style.parse(style))
            reached = end
        yield Segment(" " * (width - reached))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(8, min(60, options.max_width))


@dataclass(frozen=True, kw_only=True, slots=True)
class _DeviceTable:
    """One line per device; the bars only on a terminal."""

    devices: tuple[DeviceView, ...]
    terms: Sequence[tuple[str, str]]
    total_ms: float
    num_left_out: int
    """Devices between the slowest and the fastest half that are not shown."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        slower = len(self.devices) // 2 if self.num_left_out else len(self.devices)
        halves = [_folded(self.devices[:slower]), _folded(self.devices[slower:])]
        left = options.max_width
        columns = _fitting_columns([row for half in halves for row in half], max_width=left)
        has_bars = options.is_terminal and left >= _width(columns) + MIN_BAR_WIDTH + 1
        table = plain_table(*(name for name, _ in columns), is_terminal=options.is_terminal)
        if has_bars:
            table.add_column("", ratio=1, min_width=MIN_BAR_WIDTH)
        for position, half in enumerate(halves):
            if position and half:
                table.add_row("...", *[""] * (len(table.columns) - 1))
            for row in half:
                values = cost_terms_ms(row.first.cost, self.terms)
                bar = StackedBar(values=values, marks=_TERM_MARKS[: len(self.terms)], full=self.total_ms)
                table.add_row(*(row.cells[name] for name, _ in columns), *([bar] if has_bars else []))
        yield table
        if has_bars:
            yield _legend(self.terms)


@dataclass(frozen=True, kw_only=True, slots=True)
class _DeviceRow:
    """Devices of which all shown numbers are equal."""

    first: DeviceView
    cells: Mapping[str, str]
    """Text by the name of its column."""


def _folded(devices: Sequence[DeviceView]) -> list[_DeviceRow]:
    """Return a row for each run of devices whose cells are equal."""
    rows = []
    for _, run in groupby(devices, key=_device_cells):
        equal = list(run)
        cells = {"dev": index_ranges([each.index for each in equal]), **_device_cells(equal[0])}
        rows.append(_DeviceRow(first=equal[0], cells=cells))
    return rows


def _device_cells(device: DeviceView) -> dict[str, str]:
    cost = device.cost
    return {
        "fwd ms": format_ms(cost.forward_compute_ms),
        "bwd ms": format_ms(cost.backward_compute_ms),
        "comm ms": format_ms(cost.communication_ms),
        "wait ms": format_ms(cost.wait_ms),
        "total ms": format_ms(cost.total_ms),
        "memory": f"{format_bytes(device.memory_bytes)} ({device.memory_share:.0%})",
    }


def _fitting_columns(rows: Sequence[_DeviceRow], *, max_width: int) -> list[tuple[str, int]]:
    """Return names and widths of the columns that fit; those of the parts of a step go first."""
    columns = [(name, max(len(name), *(len(row.cells[name]) for row in rows))) for name in rows[0].cells]
    for dropped in ("wait ms", "fwd ms", "bwd ms", "comm ms"):
        if _width(columns) > max_width:
            columns = [each for each in columns if each[0] != dropped]
    return columns


def _width(columns: Sequence[tuple[str, int]]) -> int:
    """Return the cells that columns take on a terminal, one between each two."""
    return sum(width for _, width in columns) + 2 * (len(columns) - 1)


def _legend(terms: Sequence[tuple[str, str]]) -> Text:
    legend = Text("bars: ")
    for (_, name), (cell, style) in zip(terms, _TERM_MARKS, strict=False):
        legend.append(f"{cell} ", style=style).append(f"{name}  ")
    legend.rstrip()
    return legend


def _headline(summary: PlanSummary) -> RenderableType:
    plan, request = summary.plan, summary.plan.request
    topology = request.topology
    num_nodes = plan.num_devices // plan.devices_per_node
    nodes = f" in {num_nodes} nodes" if num_nodes > 1 else ""
    if topology.rack is not None:
        nodes += f", {num_nodes // topology.rack.num_nodes} racks of {topology.rack.num_nodes}"
    fullest, types, batch = summary.fullest, stored_types_text(plan), batch_texts(plan)
    used = f"{format_bytes(fullest.memory_bytes)} ({format_percent(fullest.memory_share)})"
    lines = [
        ("model", f"{request.tables.name}, {format_count(len(summary.tables))} tables"),
        ("devices", f"{format_count(plan.num_devices)} x {topology.device.product}{nodes}"),
        *([("groups", summary.groups)] if summary.groups else []),
        *([("dense part", summary.dense_part)] if summary.dense_part else []),
        ("batch", f"{format_count(request.batch_size_per_device)} samples per device, {', '.join(request.optimizers)}"),
        *([] if batch is None else zip(("chosen", "batches"), batch, strict=True)),
        ("predicted", f"{format_ms(plan.predicted.total_ms)} ms for the embedding part of a step ({plan.algorithm})"),
        *([] if summary.step is None else [("step", summary.step)]),
        ("source", _source(summary)),
        ("error", trust_text(plan.bundle)),
        ("baseline", _gain(summary)),
        *([] if plan.incumbent is None else [("in force", _incumbent(plan.incumbent))]),
        ("bound", f"{format_percent(plan.gap)} above the lower bound of {format_ms(plan.lower_bound_ms)} ms"),
        ("memory", f"device {fullest.index} is the fullest: {used} of {format_bytes(fullest.memory.capacity_bytes)}"),
        *([("host", summary.on_host)] if summary.on_host else []),
        *([("servers", summary.on_servers)] if summary.on_servers else []),
        *_exchange(plan),
        *([] if types is None else [("types", types)]),
        ("slowest", summary.bound),
    ]
    return fact_grid(lines, strong="predicted")


def _exchange(plan: Plan) -> list[tuple[str, str]]:
    request, lines = plan.resolved, []
    if request.wire is not None or plan.communication is not None:
        lines.append(("exchange", communication_line(request.wire, plan.communication, plan.predicted.total_ms)))
    if request.gradients is not None or plan.gradients is not None:
        lines.append(("gradients", gradients_line(request.gradients, plan.gradients)))
    return lines


def _source(summary: PlanSummary) -> str:
    return "; ".join(filter(None, (summary.plan.predicted.source, summary.simulated_note)))


def _gain(summary: PlanSummary) -> str:
    best, gain = summary.best_baseline, summary.gain
    if best is None or best.total_ms is None or gain is None:
        return "no baseline found a plan" if summary.plan.baselines else "no baseline was asked for"
    share = format_percent(abs(gain))
    word = f"{share} {'faster' if gain > 0 else 'slower'} than" if share != format_percent(0.0) else "as fast as"
    of_step = f"; {summary.step_gain}" if summary.step_gain else ""
    return f"{word} {best.algorithm} ({format_ms(best.total_ms)} ms){of_step}"


def _incumbent(before: IncumbentPlan) -> str:
    does_fit = "" if before.fits else ", which does not answer this request"
    moved = (
        f"{format_bytes(before.moved_bytes)} of {len(before.moved)} tables move" if before.moved else "nothing moves"
    )
    return f"{format_ms(before.total_ms)} ms under the plan in force{does_fit}; {moved}"


def _servers(summary: PlanSummary) -> RenderableType:
    """Return a line for each process of a server, the slowest first where there are many."""
    shown = sorted(summary.servers, key=lambda each: -each.busy_ms)[:MAX_DEVICES]
    rows = tuple(
        (
            each.name,
            str(each.num_shards),
            f"{each.lookups_per_sample:.3g}",
            format_bytes(each.exchanged_bytes),
            format_ms(each.cost.compute_ms),
            format_ms(each.cost.communication_ms),
            f"{format_bytes(each.memory.used_bytes)} ({each.memory.used_bytes / each.memory.capacity_bytes:.0%})",
        )
        for each in sorted(shown, key=lambda each: (each.server, each.process))
    )
    columns = ("servers", "shards", "lookups/sample", "bytes/step", "lookup ms", "exchange ms", "memory")
    return TextTable(columns=columns, rows=rows, text_columns=(0,))


def _quantile_table(summary: PlanSummary) -> RenderableType:
    def row(spread: Quantiles, name: str, shown: Callable[[float], str]) -> tuple[str, ...]:
        return (name, *map(shown, (spread.least, spread.median, spread.p95, spread.most)))

    costs = [row(spread, f"{spread.name}, ms", format_ms) for spread in summary.cost_quantiles()]
    rows = (*costs, row(summary.memory_quantiles(), "memory", format_bytes))
    return TextTable(columns=("over the devices", "least", "median", "95 %", "most"), rows=rows)


def _collectives(summary: PlanSummary) -> RenderableType:
    rows = tuple(
        (
            each.kind.value.replace("_", "-"),
            "all" if each.family is None else each.family.value,
            format_ms(each.forward_ms),
            format_ms(each.backward_ms),
            format_bytes(each.num_bytes),
        )
        for each in summary.collectives
    )
    columns = ("collective", "family", "fwd ms", "bwd ms", "most on a device")
    return TextTable(columns=columns, rows=rows, text_columns=(0, 1))


def _deduplication(plan: Plan, groups: Sequence[DeduplicatedGroup]) -> RenderableType:
    rows = tuple(
        (
            group.group,
            str(len(group.features)),
            group.form.value,
            f"{group.factor:.2f}",
            "-" if group.saved_ms is None else format_ms(group.saved_ms),
        )
        for group in groups
    )
    columns = ("repeats left out of group", "features", "form", "factor", "saves ms")
    parts: list[RenderableType] = [TextTable(columns=columns, rows=rows, text_columns=(0, 2))]
    if plan.all_lists_ms is not None:
        parts.append(Text(f"the best plan on all lists takes {format_ms(plan.all_lists_ms)} ms"))
    once = once_per_list(plan)
    if once is not None:
        parts.append(Text(once))
    return Group(*parts)


def _split_tables(summary: PlanSummary) -> RenderableType:
    split = sorted(
        summary.split_tables,
        key=lambda placed: (
            placed.placement.sharding_type is ShardingType.DATA_PARALLEL,  # copies are not what a split is read for
            -len(placed.placement.shards),
        ),
    )
    modules = ("module",) if summary.collections else ()
    rows = tuple(
        (
            placed.table.name,
            *((placed.table.collection or "",) if modules else ()),
            format_count(placed.table.num_embeddings),
            str(placed.table.embedding_dim),
            f"{placed.table.pooling_factor:g}",
            placed.shard_text,
        )
        for placed in split[:MAX_SPLIT_TABLES]
    )
    columns = ("split table", *modules, "rows", "columns", "lookups", "shards: device (columns)")
    table = TextTable(columns=columns, rows=rows, text_columns=(*range(1 + len(modules)), len(columns) - 1))
    rest = len(split) - len(rows)
    return Group(table, Text(f"and {rest} more split tables; see the plan or the report")) if rest else table


def _other_traffic(costs: Sequence[TrafficCost]) -> RenderableType:
    rows = tuple(
        (
            str(cost.algorithm),
            format_ms(cost.median_ms),
            format_ms(cost.worst_ms),
            format_percent(cost.median_regret),
            format_percent(cost.worst_regret),
        )
        for cost in costs
    )
    columns = ("traffic 30 % off", "median ms", "worst ms", "median regret", "worst regret")
    return TextTable(columns=columns, rows=rows)

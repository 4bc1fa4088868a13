"""A plan as one HTML file: styles, charts and the few lines of script inside it, nothing loaded from elsewhere."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import BaselineCost, DeviceCost, DeviceMemory
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.topology import Topology
from neuroshard_api.process.sizes import format_bytes
from neuroshard_costs.shards import weights_bytes

from neuroshard_report.batch import batch_texts
from neuroshard_report.communication import communication_line, gradients_line
from neuroshard_report.explain.robustness import TrafficCost
from neuroshard_report.explain.step import once_per_list
from neuroshard_report.explain.stored_types import stored_types_text
from neuroshard_report.explain.trust import trust_text
from neuroshard_report.html.dense_frontier import frontier_steps
from neuroshard_report.html.dense_times import dense_times
from neuroshard_report.html.device_map import (
    common_prefix,
    copies_block,
    device_lanes,
    is_copied,
    read_bytes_per_sample,
)
from neuroshard_report.html.device_strip import Series, has_node_lines, stacked_columns
from neuroshard_report.levers import lever_line, waits_for_host
from neuroshard_report.quantities import format_count, format_ms, format_percent
from neuroshard_report.summary import (
    LEAST_SHARE,
    DeviceView,
    PlacedTable,
    PlanSummary,
    cost_terms,
    index_ranges,
    memory_terms,
    summarize,
)

MAX_DEVICE_ROWS = 32  # devices drawn as one labelled row each; more become a strip of columns
MAX_LANES = 64  # lanes of the map; of more devices the slowest and the fastest are drawn
NUM_EXTREMES = 12
MAX_SPLIT_TABLES = 500
MAX_TABLES = 5000  # rows of the list of tables: about 1 MB
NUM_SLOWEST = 3

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Term:
    """One term of the cost or of the memory, as charts need it."""

    field: str
    name: str
    css_class: str


def _cost(plan: Plan) -> tuple[_Term, ...]:
    """Return the terms that occur, in the colors that they have in every report."""
    return _occurring(_terms(cost_terms(plan), "c"), plan.predicted.devices)


def _memory(plan: Plan) -> tuple[_Term, ...]:
    return _occurring(_terms(memory_terms(plan), "m"), plan.memory)


def _occurring(terms: tuple[_Term, ...], holders: Sequence[DeviceCost | DeviceMemory]) -> tuple[_Term, ...]:
    """Return the terms that some device has; all if no device has any."""
    return tuple(term for term in terms if any(getattr(each, term.field) for each in holders)) or terms


def _terms(named: Sequence[tuple[str, str]], css_letter: str) -> tuple[_Term, ...]:
    return tuple(
        _Term(field=field, name=name, css_class=f"{css_letter}{index}") for index, (field, name) in enumerate(named)
    )


def environment() -> Environment:
    """Return the templates of pages, with the formats of numbers."""
    found = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        bytes=format_bytes,
        count=format_count,
        ms=format_ms,
        percent=format_percent,
        mib=_mib,
        devices=_device_list,
        ranges=index_ranges,
    )
    return found


def page_style() -> Markup:
    """Return the styles of pages."""
    return Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file


def render_html(
    plan: Plan,
    *,
    traffic: Sequence[TrafficCost] = (),
    alternatives: Sequence[BaselineCost] = (),
    steps: StepReport | None = None,
    is_whole: bool = True,
) -> str:
    """Return the report of a plan that matches its own request. Equal arguments give equal reports.

    Args:
        plan: what is shown.
        traffic: what the plan and the baselines cost under other traffic; without it that section is left out.
        alternatives: other plans of the request, next to the plan's own baselines.
        steps: measured under the plan; without it the time of the dense part is the predicted one alone.
        is_whole: whether all of it is shown; else the first screen, which ends with the time of each device.
    """
    summary = summarize(plan.model_copy(update={"baselines": (*plan.baselines, *alternatives)}))
    resolved = plan.resolved
    topology = resolved.topology
    shown = summary.devices if topology.num_devices <= MAX_LANES else summary.extremes(NUM_EXTREMES)
    listed = _by_module(sorted(summary.tables, key=_reads, reverse=True)[:MAX_TABLES], summary)
    capacity = max(max(device.memory_bytes, device.memory.capacity_bytes) for device in summary.devices)
    template = environment().get_template("report.html.j2")
    return template.render(
        plan=plan,
        traffic=traffic,
        request=plan.request,
        topology=topology,
        summary=summary,
        trust=trust_text(plan.bundle),
        is_whole=is_whole,
        style=page_style(),
        script=Markup((_TEMPLATES / "report.js").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        sha256=hashlib.sha256(plan.to_json().encode()).hexdigest(),
        cost_terms=_cost(plan),
        once_per_list=once_per_list(plan),
        memory_terms=_memory(plan),
        capacity_bytes=capacity,
        dense_frontier=_dense_frontier(plan),
        dense_times=dense_times(plan, steps),
        draws_rows=topology.num_devices <= MAX_DEVICE_ROWS,
        has_node_lines=has_node_lines(topology.num_nodes),
        cost_strip=_strip(
            "Predicted time",
            plan.predicted.devices,
            _cost(plan),
            scale=plan.predicted.total_ms or 1.0,
            topology=topology,
        ),
        memory_strip=_strip("Memory", plan.memory, _memory(plan), scale=capacity, topology=topology),
        strip_data=_strip_data(summary.devices, _cost(plan), _memory(plan)),
        slowest_devices=summary.extremes(NUM_SLOWEST)[:NUM_SLOWEST],
        lanes=device_lanes(summary.tables, shown),
        copies=copies_block(summary.tables),
        label_prefix=common_prefix([placed for placed in summary.tables if not is_copied(placed)]),
        split_tables=_by_module(sorted(summary.split_tables, key=_cut_by_reads)[:MAX_SPLIT_TABLES], summary),
        listed_tables=listed,
        read_bytes=_reads,
        weights_bytes=_weights,
        comparison=_comparison(summary),
        least_share=LEAST_SHARE,
        levers=[
            lever_line(
                lever,
                now_ms=plan.predicted.total_ms,
                num_samples=plan.request.global_batch_size,
                is_waiting=waits_for_host(plan),
            )
            for lever in plan.levers or ()
        ],
        stored_types=stored_types_text(plan),
        batch=batch_texts(plan),
        exchange=communication_line(resolved.wire, plan.communication, plan.predicted.total_ms),
        gradients=gradients_line(resolved.gradients, plan.gradients),
    )


def _dense_frontier(plan: Plan) -> Markup:
    """Return the drawing of the dense part's layouts; empty where the plan has none, or does not say them."""
    if plan.dense is None or not plan.dense.frontier:
        return Markup("")
    return frontier_steps(plan.dense.frontier, memory_bytes=plan.dense.memory.total_bytes, dense_ms=plan.dense.dense_ms)


def _by_module(tables: Sequence[PlacedTable], summary: PlanSummary) -> Sequence[PlacedTable]:
    """Return tables grouped by collection, in the order of the collections; within each as they were."""
    order = {each.path: position for position, each in enumerate(summary.collections)}
    return sorted(tables, key=lambda placed: order.get(placed.table.collection or "", 0))


def _strip(
    name: str, holders: Sequence[DeviceCost | DeviceMemory], terms: Sequence[_Term], *, scale: float, topology: Topology
) -> Markup:
    """Return the strip of one cost or ledger per device."""
    return stacked_columns(
        [
            Series(css_class=term.css_class, values=tuple(getattr(holder, term.field) for holder in holders))
            for term in terms
        ],
        scale=scale,
        devices_per_node=topology.devices_per_node,
        label=f"{name} of each of {len(holders)} devices, stacked by term",
    )


def _strip_data(devices: Sequence[DeviceView], costs: Sequence[_Term], memory: Sequence[_Term]) -> Markup:
    """Return the data of a strip's tooltips, as JSON that cannot end its script element: numbers alone."""
    rows = [
        [
            [round(getattr(device.cost, term.field), 3) for term in costs],
            [round(getattr(device.memory, term.field) / 2**30, 2) for term in memory],
            device.num_shards,
        ]
        for device in devices
    ]
    return Markup(json.dumps(rows, separators=(",", ":")))  # noqa: S704


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """One bar of the comparison with the baselines."""

    name: str
    total_ms: float | None
    problem: str
    css_class: str
    share: float
    """Length of the bar as a share of the longest."""
    against_plan: float
    """Time more than the plan's, as a share of the plan's; negative is faster."""


def _comparison(summary: PlanSummary) -> list[_Compared]:
    """Return the bound, the plan and the baselines, cheapest first, those without a plan last."""
    plan = summary.plan
    total = plan.predicted.total_ms
    entries: list[tuple[str, float | None, str, str]] = [
        ("lower bound", plan.lower_bound_ms, "", "bound"),
        (f"{plan.algorithm} (this plan)", total, "", "ours"),
    ]
    baselines = sorted(plan.baselines, key=lambda each: (each.total_ms is None, each.total_ms or 0.0))
    entries += [(str(each.algorithm), each.total_ms, each.problem or "", "baseline") for each in baselines]
    longest = max(ms or 0.0 for _, ms, _, _ in entries) or 1.0
    return [
        _Compared(
            name=name,
            total_ms=ms,
            problem=problem,
            css_class=css_class,
            share=(ms or 0.0) / longest,
            against_plan=(ms or 0.0) / total - 1 if total else 0.0,
        )
        for name, ms, problem, css_class in entries
    ]


def _reads(placed: PlacedTable) -> float:
    return read_bytes_per_sample(placed.table, placed.table.embedding_dim)


def _cut_by_reads(placed: PlacedTable) -> tuple[bool, float]:
    """Return a key that sorts cut tables before copied ones, and those with the most bytes read first."""
    return is_copied(placed), -_reads(placed)


def _weights(placed: PlacedTable) -> int:
    return weights_bytes(placed.table)


def _mib(number: float) -> str:
    return f"{number / 2**20:,.1f}"


def _device_list(devices: Sequence[int]) -> str:
    return ", ".join(map(str, devices))

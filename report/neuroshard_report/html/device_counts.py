"""Speed and price of a sample over the number of devices as one HTML file, in the styles of the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2

from markupsafe import Markup

from neuroshard_report.device_counts import DeviceCounts, cost_of
from neuroshard_report.explain.device_counts import DeviceCount
from neuroshard_report.html.page import environment, page_style
from neuroshard_report.quantities import format_count

COLORS = tuple(f"var(--c{number})" for number in (0, 4, 8, 7, 2, 6))
"""Of the page's style, in the order of the kinds; further ones begin with the first again."""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 280, 76, 16, 12, 44


@dataclass(frozen=True, kw_only=True, slots=True)
class KindCurve:
    """One kind of devices: its name, its color, and values by numbers of devices."""

    name: str
    color: str
    points: tuple[tuple[int, float], ...]


def render_device_counts_html(found: DeviceCounts) -> str:
    """Return the page. Equal results give equal pages."""
    cost_title = "Price of a million samples" if found.has_prices else "Device seconds of a million samples"
    charts = (
        (
            "Samples per second",
            _chart(_curves(found, lambda each: None if each.plan is None else each.plan.samples_per_second)),
        ),
        (cost_title, _chart(_curves(found, cost_of))),
    )
    return (
        environment()
        .get_template("device_counts.html.j2")
        .render(
            found=found,
            charts=[each for each in charts if each[1]],
            kinds=[(name, COLORS[place % len(COLORS)]) for place, name in enumerate(found.device_types)],
            style=page_style(),
        )
    )


def _curves(found: DeviceCounts, value: Callable[[DeviceCount], float | None]) -> list[KindCurve]:
    curves = []
    for place, name in enumerate(found.device_types):
        values = ((each.num_devices, value(each)) for each in found.counts if each.device_type == name)
        points = tuple((count, each) for count, each in values if each is not None)
        if points:
            curves.append(KindCurve(name=name, color=COLORS[place % len(COLORS)], points=points))
    return curves


def _chart(curves: Sequence[KindCurve]) -> Markup:
    """Return the SVG of curves, both axes by powers of two; nothing where there is no point."""
    if not curves:
        return Markup()
    counts = sorted({count for curve in curves for count, _ in curve.points})
    values = [value for curve in curves for _, value in curve.points]
    low, high = min(values), max(values)
    x = _scale(counts[0], counts[-1], LEFT + 12, WIDTH - RIGHT - 12)
    y = _scale(low, high, HEIGHT - BOTTOM, TOP + 8)
    middle = (low * high) ** 0.5
    ticks = sorted({low, middle, high}) if high > low * 2 else [low, high] if high > low else [low]
    parts = [
        Markup(
            '<line class="axes" x1="{}" y1="{y}" x2="{}" y2="{y}"/><text x="{}" y="{}" text-anchor="end">{}</text>'
        ).format(LEFT, WIDTH - RIGHT, LEFT - 6, y(tick) + 4, _short(tick), y=f"{y(tick):.1f}")
        for tick in ticks
    ]
    parts += [
        Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            f"{x(count):.1f}", HEIGHT - BOTTOM + 20, count
        )
        for count in _apart(counts, x)
    ]
    parts.append(
        Markup('<text x="{}" y="{}" text-anchor="middle">devices</text>').format((WIDTH + LEFT) / 2, HEIGHT - 6)
    )
    for curve in curves:
        places = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in curve.points)
        parts.append(Markup('<polyline style="stroke:{}" points="{}"/>').format(curve.color, places))
        parts += [
            Markup('<circle cx="{}" cy="{}" r="3.5" style="fill:{}"><title>{} {}: {}</title></circle>').format(
                f"{x(count):.1f}", f"{y(value):.1f}", curve.color, count, curve.name, _short(value)
            )
            for count, value in curve.points
        ]
    return Markup('<svg class="curve" role="img" viewBox="0 0 {} {}">{}</svg>').format(
        WIDTH, HEIGHT, Markup("").join(parts)
    )


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    """Return the place of a value between two ends of an axis, by its logarithm."""
    span = log2(high / low)
    return lambda value: (first + last) / 2 if span == 0 else first + (last - first) * log2(value / low) / span


def _apart(counts: Sequence[int], x: Callable[[float], float]) -> list[int]:
    """Return the numbers whose labels do not touch."""
    shown: list[int] = []
    for count in counts:
        if not shown or x(count) - x(shown[-1]) >= 32:  # noqa: PLR2004 - four digits
            shown.append(count)
    return shown


def _short(value: float) -> str:
    return format_count(value) if value >= 1000 else f"{value:.3g}"  # noqa: PLR2004

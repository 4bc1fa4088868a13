"""A chart of many devices: one thin column each, one SVG path per term, so that 1,024 devices stay small."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

HEIGHT = 200  # units of the view box; the chart is stretched to its place
COLUMN = 4  # units of a device's column
MAX_WITH_GAPS = 200  # devices; narrower columns with gaps between them flicker
MAX_NODE_LINES = 64  # more lines would hide the columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One term of a stacked chart."""

    css_class: str
    values: tuple[float, ...]
    """One value per device."""


def has_node_lines(num_nodes: int) -> bool:
    """Whether lines between nodes are drawn."""
    return 1 < num_nodes <= MAX_NODE_LINES


def stacked_columns(series: Sequence[Series], *, scale: float, devices_per_node: int, label: str) -> Markup:
    """Return an SVG element of stacked columns, first series lowest.

    Args:
        series: terms of equal length.
        scale: the value at the chart's upper edge, above zero.
        devices_per_node: devices between two dividing lines.
        label: what the chart shows, for screen readers.
    """
    num_devices = len(series[0].values)
    width = num_devices * COLUMN
    bar = COLUMN - 0.5 if num_devices <= MAX_WITH_GAPS else COLUMN
    base = [0.0] * num_devices
    paths = []
    for term in series:
        commands = []
        for device, value in enumerate(term.values):
            height = HEIGHT * value / scale
            if height >= 0.05:  # noqa: PLR2004 - a fraction of a pixel
                y = HEIGHT - base[device] - height
                commands.append(f"M{device * COLUMN} {y:.1f}h{bar}v{height:.1f}h-{bar}z")
            base[device] += height
        paths.append(Markup('<path class="{}" d="{}"/>').format(term.css_class, "".join(commands)))
    lines = Markup("")
    if has_node_lines(num_devices // devices_per_node):
        edges = range(devices_per_node, num_devices, devices_per_node)
        drawn = "".join(f"M{edge * COLUMN - 0.25} 0v{HEIGHT}" for edge in edges)
        lines = Markup('<path class="node-line" d="{}"/>').format(drawn)
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}{}</svg>'
    ).format(label, width, HEIGHT, Markup("").join(paths), lines)

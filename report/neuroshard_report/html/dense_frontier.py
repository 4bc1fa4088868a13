"""The layouts of a dense part that none beats in memory and time, as steps, and the plan's as a dot."""

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup
from neuroshard_api.documents.dense_layout import DensePoint
from neuroshard_api.process.sizes import format_bytes

from neuroshard_report.quantities import format_ms

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 220, 70, 24, 14, 40


def frontier_steps(points: Sequence[DensePoint], *, memory_bytes: int, dense_ms: float) -> Markup:
    """Return an SVG: memory to the right, milliseconds upwards, both between the ends of all points.

    Args:
        points: by memory, the least first.
        memory_bytes: of the plan's layout.
        dense_ms: of the plan's layout.
    """
    sizes = [*(point.memory_bytes for point in points), memory_bytes]
    times = [*(point.dense_ms for point in points), dense_ms]
    least, most = min(sizes), max(sizes)
    fastest, slowest = min(times), max(times)

    def x(num_bytes: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (num_bytes - least) / max(1, most - least)

    def y(ms: float) -> float:
        share = (ms - fastest) / (slowest - fastest) if slowest > fastest else 0.0
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    corners = [f"{x(point.memory_bytes):.1f},{y(point.dense_ms):.1f}" for point in points]
    turns = [f"{x(after.memory_bytes):.1f},{y(before.dense_ms):.1f}" for before, after in pairwise(points)]
    line = " ".join(part for pair in zip(corners, [*turns, ""], strict=True) for part in pair if part)
    label = Markup('<text x="{}" y="{}" text-anchor="{}" fill="currentColor">{}</text>')
    labels = [
        label.format(LEFT, HEIGHT - 14, "start", format_bytes(least)),
        label.format(WIDTH - RIGHT, HEIGHT - 14, "end", format_bytes(most)),
        label.format(LEFT - 8, y(fastest), "end", f"{format_ms(fastest)} ms"),
        *([label.format(LEFT - 8, y(slowest) + 8, "end", f"{format_ms(slowest)} ms")] if slowest > fastest else []),
    ]
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="time of the dense part over its memory" '
        'viewBox="0 0 {} {}" width="100%" font-size="12"><polyline fill="none" stroke="currentColor" points="{}"/>'
        '<circle cx="{:.1f}" cy="{:.1f}" r="5" fill="#d9480f"/>{}</svg>'
    ).format(WIDTH, HEIGHT, line, x(memory_bytes), y(dense_ms), Markup("").join(labels))

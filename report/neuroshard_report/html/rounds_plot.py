"""Step times of plans that trained in turns, round by round, as an SVG file."""

from markupsafe import Markup
from neuroshard_api.documents.training_comparison import TrainingComparison

COLORS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#495057", "#a61e4d")
"""In the order of the plans; further plans begin with the first again."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LINE = 720, 320, 64, 16, 48, 18


def rounds_plot(found: TrainingComparison) -> str:
    """Return the SVG: a line per plan, milliseconds of the mean step upwards from 0, rounds to the right."""
    highest = max(max(each.step_ms) for each in found.plans.values()) * 1.05 or 1.0
    height = HEIGHT + LINE * len(found.plans)

    def x(number: int) -> float:
        return LEFT + (WIDTH - LEFT - 16) * number / max(1, found.rounds - 1)

    def y(ms: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - ms / highest)

    parts = [
        Markup('<line x1="{}" y1="{y}" x2="{}" y2="{y}" stroke="#ced4da"/><text x="{}" y="{}">{}</text>').format(
            LEFT, WIDTH - 16, 4, y(tick) + 4, f"{tick:.3g} ms", y=y(tick)
        )
        for tick in (0.0, highest / 2, highest)
    ]
    parts += [
        Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(x(number), HEIGHT - BOTTOM + 18, number + 1)
        for number in {0, found.rounds // 2, found.rounds - 1}
    ]
    parts.append(
        Markup('<text x="{}" y="{}" text-anchor="middle">round</text>').format(WIDTH / 2, HEIGHT - BOTTOM + 36)
    )
    for row, (name, times) in enumerate(found.plans.items()):
        color = COLORS[row % len(COLORS)]
        points = " ".join(f"{x(number):.1f},{y(ms):.1f}" for number, ms in enumerate(times.step_ms))
        line = HEIGHT + LINE * row + 8
        parts.append(
            Markup(
                '<polyline fill="none" stroke="{color}" stroke-width="2" points="{}"/>'
                '<rect x="{}" y="{}" width="12" height="12" fill="{color}"/>'
                '<text x="{}" y="{}">{}: {:.2f} steps/s</text>'
            ).format(points, LEFT, line - 10, LEFT + 18, line, name, times.steps_per_second, color=color)
        )
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="milliseconds of a step, round by round" '
            'viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">'
            '<rect width="100%" height="100%" fill="white"/>{}</svg>\n'
        ).format(WIDTH, height, Markup("").join(parts))
    )

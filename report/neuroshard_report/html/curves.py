"""Numbers of a training over the samples that it used, one curve each, as SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from neuroshard_api.documents.progress import ProgressPoint, TrainingProgress

from neuroshard_report.quantities import format_count

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 190, 62, 14, 12, 34
NAMES = {"loss": "training loss", "auc": "AUC", "normalized_entropy": "normalized entropy"}
"""Curves by metric, in this order; other metrics of an evaluation follow by their own names."""
_LEFT_OUT = ("auc_error",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric."""

    name: str
    points: tuple[tuple[int, float], ...]
    """Samples, and the value after them."""


def curves(progress: TrainingProgress | None) -> list[tuple[str, Markup]]:
    """Return name and drawing of each metric that has at least two points."""
    if progress is None:
        return []
    found = dict(_points(progress.losses, "loss"))
    for name in dict.fromkeys(name for each in progress.evaluations for name in each.metrics):
        found.update(_points(progress.evaluations, name))
    order = [*(name for name in NAMES if name in found), *(name for name in found if name not in NAMES)]
    drawn = [name for name in order if name.rpartition("/")[2] not in _LEFT_OUT and len(found[name]) > 1]
    last = max((found[name][-1][0] for name in drawn), default=0)
    named = [Curve(name=NAMES.get(name, name), points=found[name]) for name in drawn]
    return [(curve.name, curve_svg(curve, last=last, starts=_samples_at(progress))) for curve in named]


def curve_svg(curve: Curve, *, last: int, starts: Sequence[float]) -> Markup:
    """Return a curve as SVG: samples to the right from 0, values upwards between the least and the largest one.

    Args:
        curve: with at least one point.
        last: samples at the right end.
        starts: samples used before restarts, which dashed lines show.
    """
    last = last or 1
    values = [value for _, value in curve.points]
    least, most = min(values), max(values)

    def x(samples: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * samples / last

    def y(value: float) -> float:
        share = (value - least) / (most - least) if most > least else 0.5
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    line = " ".join(f"{x(samples):.1f},{y(value):.1f}" for samples, value in curve.points)
    label = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    labels = [
        *(label.format(LEFT - 8, y(value) + 4, "end", f"{value:.4f}") for value in dict.fromkeys((most, least))),
        label.format(LEFT, HEIGHT - 10, "start", "0"),
        label.format(WIDTH - RIGHT, HEIGHT - 10, "end", f"{format_count(last)} samples"),
    ]
    rule = Markup('<line class="start" x1="{x:.1f}" x2="{x:.1f}" y1="{}" y2="{}"><title>{}</title></line>')
    rules = [rule.format(TOP, HEIGHT - BOTTOM, "restart", x=x(start)) for start in starts if start <= last]
    first, final = curve.points[0][1], curve.points[-1][1]
    return Markup(
        '<svg class="curve" role="img" aria-label="{}: {:.4f} at first, {:.4f} at last" viewBox="0 0 {} {}">'
        '<path class="axes" d="M{} {}V{}H{}"/>{}'
        '<polyline points="{}"/><circle cx="{:.1f}" cy="{:.1f}" r="3.5"/>{}</svg>'
    ).format(
        *(curve.name, first, final, WIDTH, HEIGHT, LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT),
        *(Markup("").join(rules), line, x(curve.points[-1][0]), y(final), Markup("").join(labels)),
    )


def _points(points: Sequence[ProgressPoint], name: str) -> Iterator[tuple[str, tuple[tuple[int, float], ...]]]:
    found = tuple((each.samples, each.metrics[name]) for each in points if name in each.metrics)
    if found:
        yield name, found


def _samples_at(progress: TrainingProgress) -> list[float]:
    """Return the samples used before each restart, by the samples of a step."""
    known = [each for each in (*progress.losses, *progress.evaluations) if each.step]
    if not known:
        return []
    last = max(known, key=lambda each: each.step)
    return [start.step * last.samples / last.step for start in progress.starts[1:] if start.step]

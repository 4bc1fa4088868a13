"""The page of a run: what was measured next to what was predicted, curves, and the time axis."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from neuroshard_api.documents.finding import DataFinding, FindingKind
from neuroshard_api.documents.progress import ProgressPoint, TrainingProgress, TrainingStart
from neuroshard_report.html.curves import curves
from neuroshard_report.html.run_page import render_run
from neuroshard_report.html.timeline import StageSpan, duration_text, stage_bars
from support.builders import rank_times, step_report
from support.planner.plan_builders import plan_of

BEGIN = datetime(2026, 11, 27, 9, 0, tzinfo=UTC)
SAMPLES_PER_STEP = 512


def at(seconds: float) -> datetime:
    """Return a moment of the run."""
    return BEGIN + timedelta(seconds=seconds)


def point(step: int, **metrics: float) -> ProgressPoint:
    """Return numbers after a step, which takes a second."""
    return ProgressPoint(step=step, samples=step * SAMPLES_PER_STEP, time=at(100 + step), metrics=metrics)


def progress(num_points: int = 20, *, starts: tuple[tuple[int, str], ...] = ((0, "a"),)) -> TrainingProgress:
    """Return the progress of a training that has lost a half of its loss, with starts at steps under plans."""
    losses = tuple(point(10 * number, loss=0.7 - 0.2 * number / num_points) for number in range(1, num_points + 1))
    evaluations = tuple(
        point(each.step, auc=0.5 + each.step / 1000, auc_error=0.01, normalized_entropy=0.9) for each in losses[::5]
    )
    return TrainingProgress(
        step=losses[-1].step,
        num_steps=400,
        metrics={"loss": 0.5, "auc": 0.7},
        losses=losses,
        evaluations=evaluations,
        starts=tuple(TrainingStart(time=at(90 + step), step=step, plan_sha256=plan * 64) for step, plan in starts),
    )


STAGES = (
    StageSpan(name="profile", begin=at(0), end=at(40), outcome="done"),
    StageSpan(name="plan", begin=at(40), end=at(50), outcome="done"),
    StageSpan(name="train", begin=at(80), end=at(190), outcome="failed"),
    StageSpan(name="train", begin=at(195), end=None),
)


def test_each_metric_has_a_curve_over_the_samples() -> None:
    """From its first point to its last, the training loss first; of one point there is none."""
    found = curves(progress())

    assert [name for name, _ in found] == ["training loss", "AUC", "normalized entropy"]
    loss = str(found[0][1])
    assert "0.6900 at first, 0.5000 at last" in loss
    assert "102K samples" in loss
    assert len(re.findall(r"[\d.]+,[\d.]+", loss.partition("polyline")[2].partition("/>")[0])) == 20
    assert curves(TrainingProgress(step=1, losses=(point(1, loss=0.5),))) == []
    assert curves(None) == []


def test_restarts_are_dashed_lines_where_they_were() -> None:
    """At the samples that were used before; the first start is none."""
    drawing = str(curves(progress(starts=((0, "a"), (100, "a"), (150, "b"))))[0][1])
    places = [float(each) for each in re.findall(r'class="start" x1="([\d.]+)"', drawing)]
    left, right = 62.0, 546.0

    assert [(each - left) / (right - left) for each in places] == pytest.approx([100 / 200, 150 / 200], abs=0.001)


def test_stages_are_bars_on_one_axis_of_time() -> None:
    """One under way lasts until the last number that is known; each attempt is a bar of its own."""
    bars = stage_bars(STAGES, progress())

    assert [bar.span.name for bar in bars] == ["profile", "plan", "train", "train"]
    assert [bar.begins_at for bar in bars] == pytest.approx([0, 40 / 300, 80 / 300, 195 / 300])
    assert [bar.share for bar in bars] == pytest.approx([40 / 300, 10 / 300, 110 / 300, 105 / 300])
    assert [bar.took for bar in bars] == ["40 s", "10 s", "1 min 50 s", "1 min 45 s"]
    assert stage_bars((), progress()) == []


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min")])
def test_a_duration_is_said_as_people_do(seconds: float, text: str) -> None:
    """In two units at most."""
    assert duration_text(seconds) == text


def test_the_page_of_a_run_under_way_loads_itself_again() -> None:
    """And says so; one that has ended is the same whenever it is made."""
    plan = plan_of(num_devices=2)
    steps = step_report(plan_sha256="a" * 64, ranks=(rank_times(0), rank_times(1)))
    found = progress(starts=((0, "a"), (100, "b")))

    live = render_run(plan, steps=steps, progress=found, stages=STAGES, refresh_s=10)
    ended = render_run(plan, steps=steps, progress=found, stages=STAGES[:3])

    assert '<meta http-equiv="refresh" content="10">' in live
    assert "every 10 s" in live
    assert "refresh" not in ended
    assert "1 min 45 s, goes on" in live
    assert "2026-11-27 09:03:10 UTC: restarted from step 100, under plan bbbbbbbbbb" in live
    assert ended == render_run(plan, steps=steps, progress=found, stages=STAGES[:3])


def test_variants_have_a_line_each() -> None:
    """The best one first; the cards have the metrics of the best one alone."""
    metrics = {"auc": 0.8, "a/auc": 0.7, "a/loss": 0.6, "b/auc": 0.8, "b/loss": 0.5}
    page = render_run(
        plan_of(num_devices=2), steps=None, progress=TrainingProgress(step=20, metrics=metrics, diverged={"c": 12})
    )
    cards, _, rest = page.partition("</section>")

    assert cards.count('<p class="note">last</p>') == 1
    lines = ["b: AUC 0.8000, training loss 0.5000", "a: AUC 0.7000, training loss 0.6000", "c: diverged at step 12"]
    assert re.findall("<li>(.*)</li>", rest) == lines


def test_findings_have_a_line_each() -> None:
    """With column and range; without any there is no such section."""
    found = DataFinding(kind=FindingKind.NULLS_ROSE, column="a<b", first_step=3, last_step=9, before=0.1, now=0.5)
    plan = plan_of(num_devices=2)
    page = render_run(plan, steps=None, progress=TrainingProgress(step=20, findings=(found,)))
    quiet = render_run(plan, steps=None, progress=TrainingProgress(step=20))

    assert "NullsRose: column &#39;a&lt;b&#39;: 50.0% of samples have none, 10.0% before; began in steps 3 to 9" in page
    assert 'id="findings"' not in quiet


def test_a_run_that_failed_says_why_in_its_first_screen() -> None:
    """Before anything that was measured."""
    page = render_run(plan_of(num_devices=2), steps=None, progress=None, failure="rank 1 was killed by <SIGKILL>")
    header, _, rest = page.partition("</header>")

    assert "<strong>failed</strong><span>rank 1 was killed by &lt;SIGKILL&gt;</span>" in header
    assert "SIGKILL" not in rest


def test_what_is_not_known_leaves_no_section() -> None:
    """A run without reports has its prediction alone."""
    page = render_run(plan_of(num_devices=2), steps=None, progress=None)

    assert "No steps were measured" in page
    for heading in ("As training went on", "Stages and restarts", "Rank by rank", "Narrow types"):
        assert heading not in page

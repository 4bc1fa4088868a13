"""Pages as Chromium lays them out: nothing runs out of its place, and no clipped label names another table."""

import html
import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.progress import ProgressPoint, TrainingProgress, TrainingStart
from neuroshard_report.html.page import render_html
from neuroshard_report.html.run_page import render_run
from neuroshard_report.html.timeline import StageSpan
from support.builders import rank_times, step_report, table
from support.planner.plan_builders import plan_of

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WIDTHS = (1400, 420)
MEASURE = """
addEventListener("load", () => setTimeout(() => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, wide = [];
    if (page.documentElement.scrollWidth > frame.clientWidth) wide.push("page");
    for (const each of page.querySelectorAll(".card, .card p, h1, h2, section, .row, .legend, .source"))
      if (each.scrollWidth > each.clientWidth + 1) wide.push(each.className || each.tagName);
    if (frame.clientWidth > 1000)
      for (const each of page.querySelectorAll(".scroll"))
        if (each.scrollWidth > each.clientWidth + 1) wide.push(each.textContent.trim().slice(0, 40));
    let cut = 0, shown = 0;
    for (const label of page.querySelectorAll(".blocks span")) {
      const own = label.getBoundingClientRect(), block = label.parentElement.getBoundingClientRect();
      if (own.top >= block.bottom - 2) continue;
      shown += 1;
      if (own.right > block.right + 1) cut += 1;
    }
    found[frame.name] = {wide, cut, shown};
  }
  document.body.innerHTML = "<pre>" + JSON.stringify(found) + "</pre>";
}, 200));
"""


def laid_out(folder: Path, pages: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the elements out of their place, and the numbers of labels cut and shown, by page and width."""
    frames = "".join(
        f'<iframe name="{name} at {width}" style="width:{width}px;height:800px;border:0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for width in WIDTHS
    )
    file = folder / "pages.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}<script>{MEASURE}</script></body>")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    profile = f"--user-data-dir={folder / 'chromium'}"
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *options, profile, f"file://{file}"], capture_output=True, text=True, timeout=300, check=True
    )
    measured = re.search(r"<pre>(\{.*?)</pre>", done.stdout, flags=re.DOTALL)
    assert measured is not None, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(html.unescape(measured.group(1)))
    return found


def run_page_of_many_ranks() -> str:
    """Return the page of a run with curves, restarts, and stages that went wrong."""
    at = datetime(2026, 11, 27, tzinfo=UTC)
    plan = plan_of(num_devices=8)
    points = tuple(
        ProgressPoint(step=step, samples=10**8 * step, time=at + timedelta(hours=step), metrics={"loss": 1 / step})
        for step in range(1, 40)
    )
    progress = TrainingProgress(
        step=40,
        num_steps=100,
        metrics={"loss": 0.025, "auc": 0.78, "normalized_entropy": 0.81},
        losses=points,
        evaluations=tuple(
            each.model_copy(update={"metrics": {"auc": 0.5, "normalized_entropy": 1}}) for each in points
        ),
        starts=tuple(TrainingStart(time=at, step=step, plan_sha256="a" * 64) for step in (0, 10, 20)),
    )
    stages = [
        StageSpan(name=name, begin=at, end=at + timedelta(hours=hours), outcome="failed")
        for hours, name in enumerate(("count-repeats", "profile", "plan", "train"), start=1)
    ]
    steps = step_report(ranks=tuple(rank_times(rank) for rank in range(8)), samples_per_second=12_345_678.0)
    failure = f"rank 1 failed: no space is left (log: /{'a_folder_of_a_long_name_' * 4}/train.log)"
    return render_run(plan, steps=steps, progress=progress, stages=stages, failure=failure, refresh_s=10)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.timeout(400)
def test_nothing_runs_out_of_its_place(tmp_path: Path) -> None:
    """With one device, few, and many; on a wide window and on a telephone's."""
    many = [table(f"feature_of_a_long_name_{number}", embedding_dim=16) for number in range(200)]
    plans = {
        "one device": plan_of(num_devices=1, split_every=0),
        "8 devices": plan_of(),
        "64 devices": plan_of(*many, num_devices=64, split_every=7),
    }

    pages = {name: render_html(plan) for name, plan in plans.items()}
    pages["no map: a run"] = run_page_of_many_ranks()

    found = laid_out(tmp_path, pages)

    assert len(found) == len(pages) * len(WIDTHS)
    assert {name: each["wide"] for name, each in found.items() if each["wide"]} == {}
    assert {name: each["cut"] for name, each in found.items() if each["cut"]} == {}
    assert all(each["shown"] for name, each in found.items() if "one" not in name and "no map" not in name)

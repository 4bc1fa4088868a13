"""Makes pictures from plans of this checkout: `make pictures`. Needs Chromium for the screenshot.

bars.svg, in README: milliseconds of the embedding part of a step on each device, under the best greedy plan and ours.
report.png, in the guide to reports: the first screen of the HTML report of our plan.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from neuroshard_api.job.preparation import PlannerAlgorithm

IMAGES = Path(__file__).parent / "images"
WORKLOAD = "mlperf-dlrm-dcnv2"
TITLE = "MLPerf DLRM-DCNv2, 26 tables on 8 simulated H100"
DEVICES = ("--devices", "8", "--device-type", "h100-80gb")
SCREEN = (1280, 960)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

WIDTH, PANEL, LEFT, TOP, BAR, STEP = 960, 440, 60, 92, 18, 26
"""Pixels of the picture, of the half for one plan, of its labels, of the text above, of a bar, and from bar to bar."""
STYLE = """
    .card { fill: #ffffff; stroke: #d0d7de; }
    text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; font-size: 13px; }
    .head { font-size: 17px; font-weight: 600; }
    .note { fill: #59636e; }
    .compute { fill: #0969da; } .collectives { fill: #bf8700; } .updates { fill: #8c959f; }
    .limit { stroke: #cf222e; stroke-dasharray: 4 3; stroke-width: 1.5; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d; }
      text { fill: #f0f6fc; }
      .note { fill: #9198a1; }
      .compute { fill: #4493f8; } .collectives { fill: #d29922; } .updates { fill: #656c76; }
      .limit { stroke: #f85149; }
    }
"""


def main() -> int:
    """Plan, draw, and photograph; return an exit code."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.stderr.write(f"error: none of {', '.join(BROWSERS)} is installed\nhint: apt install chromium\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        ours = _plan(Path(folder), "neuroshard", "--out", f"{folder}/report.html")
        best = min(ours["baselines"], key=lambda each: each["total_ms"])["algorithm"]
        greedy = _plan(Path(folder), best)
        (IMAGES / "bars.svg").write_text(bars([(f"Best greedy plan ({best})", greedy), ("NeuroShard", ours)]), "utf-8")
        _photograph(browser, Path(folder, "report.html"), IMAGES / "report.png")
    return 0


def bars(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return an SVG with a bar for each device of each plan, to one scale.

    Args:
        plans: names and plan documents.
    """
    steps_ms = [plan["predicted"]["total_ms"] for _, plan in plans]  # with waits, which the bars leave out
    rows = max(len(plan["predicted"]["devices"]) for _, plan in plans)
    height = TOP + rows * STEP + 52
    scale = (PANEL - LEFT - 30) / max(steps_ms)
    drawn = [
        f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        f'<text class="note" x="24" y="{height - 18}">{TITLE}; predicted embedding part of a step</text>',
    ]
    for right, part, name in (
        (330, "compute", "compute"),
        (240, "collectives", "collectives"),
        (140, "updates", "dense updates"),
    ):
        drawn.append(f'<rect class="{part}" x="{WIDTH - right}" y="{height - 29}" width="12" height="12"/>')
        drawn.append(f'<text class="note" x="{WIDTH - right + 17}" y="{height - 18}">{name}</text>')
    for index, ((name, plan), step_ms) in enumerate(zip(plans, steps_ms, strict=True)):
        x = 24 + index * (PANEL + 24)
        drawn.append(f'<text class="head" x="{x}" y="40">{escape(name)}</text>')
        drawn.append(f'<text class="note" x="{x}" y="62">{step_ms:.2f} ms: the slowest device decides</text>')
        for row, device in enumerate(plan["predicted"]["devices"]):
            y, begin = TOP + row * STEP, float(x + LEFT)
            drawn.append(f'<text class="note" x="{x}" y="{y + 14}">GPU {row}</text>')
            for part, ms in zip(("compute", "collectives", "updates"), _parts_ms(device), strict=True):
                drawn.append(f'<rect class="{part}" x="{begin:.1f}" y="{y}" width="{ms * scale:.1f}" height="{BAR}"/>')
                begin += ms * scale
        end = x + LEFT + step_ms * scale
        drawn.append(f'<path class="limit" d="M{end:.1f} {TOP - 6}V{TOP + rows * STEP}"/>')
    title = f"{TITLE}: " + "; ".join(f"{name} {ms:.2f} ms" for (name, _), ms in zip(plans, steps_ms, strict=True))
    body = "\n  ".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">\n'
        f'  <title id="title">{escape(title)}</title>\n  <style>{STYLE}  </style>\n  {body}\n</svg>\n'
    )


def _parts_ms(device: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return a device's time of compute, of collectives, and of the rest but for waits."""
    compute_ms = device["forward_compute_ms"] + device["backward_compute_ms"]
    collectives_ms = sum(each["forward_ms"] + each["backward_ms"] for each in device["collectives"])
    return compute_ms, collectives_ms, device["dense_update_ms"] + device["host_link_ms"]


def _plan(folder: Path, algorithm: str, *options: str) -> dict[str, Any]:
    path = folder / f"{algorithm}.json"
    chosen = f"spec.planner.algorithm={PlannerAlgorithm[algorithm.upper()]}"
    command = ["neuroshard", "plan", WORKLOAD, *DEVICES, "--set", chosen, "--out", str(path), *options]
    subprocess.run([sys.executable, "-c", "from neuroshard_cli.main import main; main()", *command[1:]], check=True)
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def _photograph(browser: str, page: Path, picture: Path) -> None:
    width, height = SCREEN
    size = f"--window-size={width},{height}"
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={picture}", page.as_uri()]
    subprocess.run([browser, *options], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())

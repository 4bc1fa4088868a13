"""Draws gains.svg, on the page of benchmarks, from a result file: our plans next to those of TorchRec's planner.

One bar for each public workload and number of devices for which TorchRec's planner has a plan: gains, ties, and losses.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "gains.svg"
TIE_PERCENT = 0.1
"""Two costs closer than this count as equal: the result file has three decimals of a millisecond."""

WIDTH, LEFT, ZERO, TOP, BAR, STEP, PER_PERCENT = 960, 300, 360, 76, 13, 19, 22
"""Pixels of the picture, of its labels, of the axis, of the text above, of a bar, from bar to bar, and of 1 %."""
NOTE = "Decrease of the embedding part of a step, public workloads on 4 to 64 simulated H100; within 0.1 % is a tie"
STYLE = """
    .card { fill: #ffffff; stroke: #d0d7de; }
    text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; font-size: 12px; }
    .head { font-size: 17px; font-weight: 600; }
    .note { fill: #59636e; }
    .gain { fill: #0969da; } .tie { fill: #818b98; } .loss { fill: #cf222e; }
    .axis { stroke: #818b98; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d; }
      text { fill: #f0f6fc; }
      .note { fill: #9198a1; }
      .gain { fill: #4493f8; } .tie { fill: #656c76; } .loss { fill: #f85149; }
    }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Both planners on one workload."""

    workload: str
    num_devices: int
    ours_ms: float
    torchrec_ms: float

    @property
    def gain_percent(self) -> float:
        """Decrease of the cost in percent of TorchRec's; negative where our plan costs more."""
        return 100 * (1 - self.ours_ms / self.torchrec_ms)

    @property
    def kind(self) -> str:
        """Whether it is a gain, a tie, or a loss."""
        if abs(self.gain_percent) <= TIE_PERCENT:
            return "tie"
        return "gain" if self.gain_percent > 0 else "loss"


def comparisons(result: str) -> list[Comparison]:
    """Return the rows of a result file of `search_quality` in which both planners have a plan, the largest gain first.

    Raises ValueError if there is none.
    """
    row = re.compile(r"^\| ([\w-]+) \| \d+ \| (\d+) \| ([\d.]+) \|(?:[^|]*\|){3} (\d[\d.]*) \|", re.MULTILINE)
    found = [
        Comparison(workload=name, num_devices=int(devices), ours_ms=float(ours), torchrec_ms=float(torchrec))
        for name, devices, ours, torchrec in row.findall(result)
    ]
    if not found:
        raise ValueError("the result file has no row with a plan of TorchRec")
    return sorted(found, key=lambda each: (-each.gain_percent, each.workload, each.num_devices))


def plot(rows: Sequence[Comparison]) -> str:
    """Return the SVG of some comparisons."""
    kinds = [row.kind for row in rows]
    counts = ", ".join(
        f"{kinds.count(kind)} {kind if kinds.count(kind) == 1 else plural}"
        for kind, plural in (("gain", "gains"), ("tie", "ties"), ("loss", "losses"))
    )
    title = f"Cost next to the plan of TorchRec's planner by columns: {counts}"
    height = TOP + STEP * len(rows) + 20
    parts = [
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="head" x="20" y="30">{escape(title)}</text>',
        f'<text class="note" x="20" y="52">{NOTE}</text>',
    ]
    for number, row in enumerate(rows):
        y = TOP + STEP * number
        length = max(abs(row.gain_percent) * PER_PERCENT, 1.5)
        start = ZERO - length if row.gain_percent < 0 else ZERO
        label = f"{row.workload}, {row.num_devices} devices"
        parts += [
            f'<text x="{LEFT - 12}" y="{y + 11}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{row.kind}" x="{start:.1f}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>',
            f'<text class="note" x="{ZERO + max(start + length - ZERO, 0) + 8:.1f}" y="{y + 11}">{_value(row)}</text>',
        ]
    parts.append(f'<line class="axis" x1="{ZERO}" y1="{TOP - 6}" x2="{ZERO}" y2="{height - 14}"/>')
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">\n'
        f'  <title id="title">{escape(title)}</title>\n  <style>{STYLE}  </style>\n  {body}\n</svg>\n'
    )


def _value(row: Comparison) -> str:
    """Return the gain as text, in whole percent: costs of a third of a millisecond have three digits in the file."""
    if row.kind == "tie":
        return "equal"
    if abs(row.gain_percent) < 1:
        return "less than 1 %"
    return f"{row.gain_percent:.0f} %".replace("-", "\N{MINUS SIGN}")


def newest_result() -> Path:
    """Return the newest result file of `search_quality`; its name ends with the date."""
    return max(RESULTS.glob("search-quality_*.md"), key=lambda path: path.stem[-10:])


if __name__ == "__main__":
    PICTURE.write_text(plot(comparisons(newest_result().read_text(encoding="utf-8"))), encoding="utf-8")

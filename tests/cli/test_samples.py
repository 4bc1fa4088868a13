"""Samples of output in README and guides, next to what the commands print today."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_report.terminal.job import render_job
from rich.console import Console
from support import builders

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDES = ROOT / "docs" / "guides"
MARK = "    "
STATUS: dict[str, Any] = {
    "stage": "Running",
    "reason": "AllWorkersReady",
    "message": "2 of 2 workers are ready",
    "stages": [
        {
            "name": name,
            "state": "Succeeded",
            "attempts": 1,
            "startTime": "2026-01-01T00:00:00Z",
            "completionTime": f"2026-01-01T00:{took}Z",
        }
        for name, took in (("Profiling", "02:03"), ("Planning", "00:07"), ("Launching", "00:21"))
    ]
    + [{"name": "Running", "state": "Active", "attempts": 1}],
    "plan": {
        "configMapRef": {"name": "mocked-gpus-plan-1f2e3d4c5b", "key": "plan.json"},
        "algorithm": "neuroshard",
        "worldSize": 2,
    },
    "cost": {
        "predicted": {
            "totalMicroseconds": 126,
            "computeMicroseconds": 61,
            "forwardCommunicationMicroseconds": 33,
            "backwardCommunicationMicroseconds": 32,
            "source": "simulated:NVIDIA-H200",
        },
        "baseline": {"algorithm": "dim_greedy", "totalMicroseconds": 127},
        "measured": {
            "totalMicroseconds": 89_900,
            "computeMicroseconds": 62_100,
            "forwardCommunicationMicroseconds": 14_000,
            "backwardCommunicationMicroseconds": 13_800,
            "source": "cpu:Intel(R) Xeon(R) Processor",
        },
    },
    "trainerStatus": {"progressPercentage": 45, "metrics": [{"name": "auc", "value": "0.71"}]},
}
"""Of the demo's job while it runs."""


def samples(page: Path) -> list[str]:
    """Return the indented blocks of a page, without their indent."""
    lines, found = page.read_text(encoding="utf-8").splitlines(), [""]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(MARK):
            found[-1] += line.removeprefix(MARK) + "\n"
        elif found[-1] and not line and following.startswith(MARK):
            found[-1] += "\n"
        elif found[-1]:
            found.append("")
    return found


def sample_with(page: Path, text: str) -> str:
    """Return the only block of a page that has a text, from the line of the text on."""
    [found] = [each for each in samples(page) if text in each]
    return found[found.index(text) :]


def words(text: str) -> str:
    """Return a text with one space in the place of all others: a page breaks long lines."""
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample",
    [
        (README, "mlperf-dlrm-dcnv2", "model      "),
        (GUIDES / "tables-do-not-fit.md", "hugectr-embark-7-table-470b", "error: table"),
        (
            GUIDES / "tables-do-not-fit.md",
            "hugectr-embark-7-table-470b --devices 16 --device-type h100-80gb --host",
            "model ",
        ),
    ],
    ids=["README", "no fit", "host memory"],
)
def test_a_plan_prints_the_sample_of_its_page(
    neuroshard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: tuple[Path, str, str]
) -> None:
    """The page's own command is run; each line of the sample is printed, and `...` stands for the rest."""
    monkeypatch.chdir(tmp_path)
    page, model, start = sample
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    command = next(line for line in text.splitlines() if re.match(rf"{MARK}neuroshard plan {model}\b", line))
    result = neuroshard(*command.split()[1:])

    if start.startswith("error"):
        assert words(sample_with(page, start)) == words(result.err)
    else:
        shown = sample_with(page, start).splitlines()
        assert [line for line in shown if line != "..." and line not in result.out.splitlines()] == []


def test_the_status_of_the_demo_is_the_sample_of_the_first_guide() -> None:
    """Its labels and columns are what the command prints; the numbers are of one run."""
    job = DLRMTrainingJob.from_data({**builders.job_data("mocked-gpus"), "status": STATUS})
    console = Console(file=io.StringIO(), width=400)
    console.print(render_job(job))

    printed = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert sample_with(GUIDES / "first-job.md", "mocked-gpus: Running").splitlines() == printed

"""Samples of output in README and guides have the lines that the commands print; their numbers may be older."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from support.cli.searches import QUICK_WORK

ROOT = Path(__file__).parents[2]
FIT_GUIDE = ROOT / "docs" / "guides" / "tables-do-not-fit.md"
MARK = "    "


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


def gist(line: str) -> list[str]:
    """Return the words of a line in which another search may have other numbers and other shares of a step."""
    return re.findall(r"[A-Za-z_]{2,}", line.partition(", of which ")[0])


def printed_by(neuroshard: Any, folder: Path, page: Path, command: str, *options: str) -> Any:
    """Run the command of a page that begins with these words, and return its result."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    line = next(line for line in text.splitlines() if re.match(rf"{MARK}neuroshard {command}\b", line))
    with contextlib.chdir(folder):
        return neuroshard(*line.split()[1:], *options)


@pytest.mark.parametrize(
    ("page", "command"),
    [
        (ROOT / "README.md", "plan mlperf-dlrm-dcnv2"),
        (FIT_GUIDE, "plan hugectr-embark-7-table-470b --devices 16 --device-type h100-80gb +--set spec"),
    ],
    ids=["summary", "host memory"],
)
def test_a_plan_prints_the_lines_of_its_pages_sample(neuroshard: Any, tmp_path: Path, page: Path, command: str) -> None:
    """Labels and words of each line of the sample are in a line of the output; `...` stands for the rest."""
    result = printed_by(
        neuroshard, tmp_path, page, command, "--set", f"spec.experimental.planner.workBudget={QUICK_WORK}"
    )

    printed = [gist(line) for line in result.out.splitlines()]
    shown = sample_with(page, "model      ").splitlines()
    assert len(shown) > 5
    assert [line for line in shown if line != "..." and gist(line) not in printed] == []


def test_tables_that_do_not_fit_are_refused_with_the_words_of_the_guide(neuroshard: Any, tmp_path: Path) -> None:
    """Sizes too: no search enters them. The page breaks long lines."""
    result = printed_by(neuroshard, tmp_path, FIT_GUIDE, "plan hugectr-embark-7-table-470b")

    assert sample_with(FIT_GUIDE, "error: the tables need").split() == result.err.split()

"""Samples of plans in guides, next to what the commands print today."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
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


def words(text: str) -> str:
    """Return a text with one space in the place of all others: a page breaks long lines."""
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample",
    [
        (GUIDES / "tables-do-not-fit.md", "hugectr-embark-7-table-470b", "error: table"),
        (
            GUIDES / "tables-do-not-fit.md",
            "hugectr-embark-7-table-470b --devices 16 --device-type h100-80gb --host",
            "model ",
        ),
    ],
    ids=["no fit", "host memory"],
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

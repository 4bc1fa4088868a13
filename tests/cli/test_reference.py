import re
from pathlib import Path

import pytest
from neuroshard_cli.command_list import ENTRIES
from neuroshard_cli.main import run

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
SAME_AS = {"compare": "plan", "score": "plan"}
"""Commands whose options are documented under another."""


@pytest.mark.parametrize("name", ENTRIES)
def test_the_reference_names_every_option_of_every_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that is not documented is not found; one that does not exist misleads."""
    run([name, "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    sections = dict(
        re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", REFERENCE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )

    documented = set(re.findall(r"--[a-z][a-z-]+", sections[name] + sections.get(SAME_AS.get(name, ""), "")))
    assert options <= documented
    if name not in SAME_AS:
        assert documented - {"--install-completion", "--block-signal"} <= options  # the second is of GNU env


@pytest.mark.parametrize("name", ["plan", "compare", "score"])
def test_planning_has_few_options_in_groups_and_the_most_used_come_first(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person reads one screen; all else is a field of the job."""
    run([name, "--help"])
    text = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)

    planned = ["What is planned"] if name == "plan" else []
    assert titles[: 3 + len(planned)] == ["Arguments", "Most used", *planned, "Devices and cost models"]
    assert options[:4] == ["--devices", "--device-type", "--batch-size", "--set"]
    assert len(set(options) - {"--help"}) <= 14

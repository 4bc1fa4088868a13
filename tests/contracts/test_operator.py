"""What the operator promises to those who install it: what it imports, and that its pages name everything."""

import subprocess
import sys
from pathlib import Path

import pytest
from neuroshard_decisions.conditions import ConditionType

ROOT = Path(__file__).parents[2]
CONCEPT = (ROOT / "docs" / "concepts" / "operator.md").read_text(encoding="utf-8")


def test_the_operator_starts_without_torch_and_numpy() -> None:
    """Its image has neither."""
    modules = [
        ".".join(path.relative_to(ROOT / room).with_suffix("").parts)
        for room in ("operator", "decisions")
        for path in sorted((ROOT / room / f"neuroshard_{room}").rglob("*.py"))
        if path.name not in {"__main__.py", "__init__.py"}
    ]
    assert "neuroshard_operator.main" in modules
    heavy = {"torch", "numpy", "neuroshard_planner"}
    code = f"import sys, {', '.join(modules)}\nprint(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == ""


@pytest.mark.parametrize("kind", list(ConditionType))
def test_every_condition_is_named(kind: ConditionType) -> None:
    """The page on the operator lists them."""
    assert f"`{kind}`" in CONCEPT


def test_every_row_of_what_happens_when_names_a_test_that_exists() -> None:
    """The table promises only what is tested."""
    rows = CONCEPT[CONCEPT.index("| what happens | ") : CONCEPT.index("## Conditions")].splitlines()[2:]
    for row in filter(None, rows):
        named = [name.strip(" `") for name in row.split("|")[-2].split(",")]
        for name in named:
            folder = ROOT if name.startswith("tests/") else ROOT / "tests" / "operator"
            assert (folder / name).is_file(), row

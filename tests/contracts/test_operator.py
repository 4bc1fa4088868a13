"""What the operator promises to those who install it: what it imports, and that its pages name everything."""

import subprocess
import sys
from pathlib import Path

import pytest
from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.process.metrics import Metrics
from neuroshard_operator.settings import PREFIX, Settings
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "operator.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
CONCEPT = (ROOT / "docs" / "concepts" / "operator.md").read_text(encoding="utf-8")


def test_the_operator_starts_without_torch_and_numpy() -> None:
    """Its image has neither."""
    modules = [
        ".".join(path.relative_to(ROOT / "operator").with_suffix("").parts)
        for path in sorted((ROOT / "operator" / "neuroshard_operator").rglob("*.py"))
        if path.name not in {"__main__.py", "__init__.py"}
    ]
    assert "neuroshard_operator.main" in modules
    heavy = {"torch", "numpy", "neuroshard_planner"}
    code = f"import sys, {', '.join(modules)}\nprint(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == ""


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_explained(reason: Reason) -> None:
    """Whoever sees a reason finds what to do."""
    assert f"`{reason}`" in TROUBLESHOOTING


@pytest.mark.parametrize("kind", list(ConditionType))
def test_every_condition_is_named(kind: ConditionType) -> None:
    """The page on the operator lists them."""
    assert f"`{kind}`" in CONCEPT


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_is_described(name: str) -> None:
    """By the variable that sets it, and with its default."""
    default = Settings.model_fields[name].default
    written = ", ".join(default) if isinstance(default, tuple) else str(default).lower() if default is True else default
    named = "all" if name == "namespaces" else "required" if default is PydanticUndefined else written or "none"
    assert f"| `{PREFIX}{name.upper()}` | {named} |" in REFERENCE


@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if not field.is_required()])
def test_every_default_is_described(name: str) -> None:
    """With the value that the operator takes where the variable is not set."""
    default = Settings.model_fields[name].default
    [row] = [line for line in REFERENCE.splitlines() if line.startswith(f"| `{PREFIX}{name.upper()}` |")]
    if isinstance(default, int | float) and not isinstance(default, bool):
        assert float(row.split("|")[2]) == default


def test_every_row_of_what_happens_when_names_a_test_that_exists() -> None:
    """The table promises only what is tested."""
    rows = CONCEPT[CONCEPT.index("| what happens | ") : CONCEPT.index("## Conditions")].splitlines()[2:]
    for row in filter(None, rows):
        named = [name.strip(" `") for name in row.split("|")[-2].split(",")]
        for name in named:
            folder = ROOT if name.startswith("tests/") else ROOT / "tests" / "operator"
            assert (folder / name).is_file(), row


def test_every_metric_is_described() -> None:
    """By the name that Prometheus shows."""
    families = [family.name for family in Metrics().registry.collect()]

    assert [name for name in families if f"`{name}`" not in REFERENCE and f"`{name}_total`" not in REFERENCE] == []

"""The tables of the reference are those of the code."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from neuroshard_api.process.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    """Return the program that writes the tables."""
    spec = importlib.util.spec_from_file_location("reference_tables", ROOT / "docs" / "reference_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES = script()


@pytest.mark.parametrize("name", list(TABLES.TABLES))
def test_a_committed_table_is_current(name: str) -> None:
    """`make tables` writes the tables of settings, metrics, exit codes, conditions, reasons, and events."""
    file, write = TABLES.TABLES[name]
    page = (ROOT / "docs" / "reference" / file).read_text(encoding="utf-8")

    assert TABLES.with_table(page, name, write()) == page


def test_every_failure_has_a_remedy() -> None:
    """Each exit code but 0 has a second paragraph, the last column of the table."""
    rows = [row.split("|")[1:-1] for row in TABLES.exit_codes_table().splitlines()[2:]]

    assert [int(row[0]) for row in rows] == [code.value for code in ExitCode]
    assert [row[0].strip() for row in rows if not row[3].strip()] == ["0"]


def test_every_reason_of_a_failed_job_has_a_remedy() -> None:
    """The last group of reasons ends a job, so its third column is never empty; the other groups have a meaning."""
    groups = TABLES.reasons_table().split("### ")[1:]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in groups[-1].splitlines()[4:]]

    assert groups[-1].startswith("When it has failed")
    assert len(rows) >= 18
    assert [reason for reason, meaning, remedy in rows if not meaning or not remedy] == []


def test_a_page_without_its_marks_is_refused() -> None:
    """A table is never dropped in silence."""
    with pytest.raises(ValueError, match="end of settings"):
        TABLES.with_table("# Settings\n", "settings", "| a |")

from pathlib import Path
from typing import Any

from neuroshard_api.documents.plan import Plan
from neuroshard_report.html.page import render_html


def test_a_plan_becomes_a_page(neuroshard: Any, tmp_path: Path) -> None:
    """On stdout, or in a file of which people are told."""
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    neuroshard("plan", "mlperf-dlrm-v1", "--devices", "4", "--device-type", "h100-80gb", "--out", plan)
    to_stdout = neuroshard("report", plan)
    to_file = neuroshard("report", plan, "-o", page)

    assert (to_stdout.code, to_stdout.err) == (0, "")
    assert to_stdout.out == page.read_text() == render_html(Plan.read(plan))
    assert (to_file.out, to_file.err) == ("", f"report written to {page}\n")


def test_a_missing_plan_is_a_sentence(neuroshard: Any, tmp_path: Path) -> None:
    """The path is named."""
    result = neuroshard("report", tmp_path / "none.json")

    assert (result.code, result.out) == (2, "")
    assert "none.json: does not exist" in result.err

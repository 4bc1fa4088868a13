"""The table of narrow types on the wire, as `neuroshard plan` shows it."""

import re

import pytest
from neuroshard_api.documents.communication import CommunicationChoices, WireType
from neuroshard_report.html.page import render_html
from neuroshard_report.terminal.communication import communication_table
from rich.console import Console
from support import builders
from support.planner.searches import planned

CHOICES = CommunicationChoices(forward=(WireType.FP16, WireType.INT8), backward=(WireType.FP16,))
ROUNDED = 0.011
"""Milliseconds: three digits of each number are shown."""


def test_every_row_of_the_table_of_narrow_types_adds_up() -> None:
    """All-to-alls and the rest are the step, and the step is that of exact exchange less the saving."""
    plan = planned(
        builders.request(
            *builders.tables(16, embedding_dim=128),
            topology=builders.topology(16, num_nodes=2),
            communication=CHOICES,
            search=builders.QUICK,
        )
    )
    assert plan.communication is not None
    console = Console(width=300, record=True)
    console.print(communication_table(plan.communication))

    rows = [re.split(r"  +", line.strip()) for line in console.export_text().splitlines() if " backward" in line]
    assert len(rows) == 1 + len(CHOICES.pairs)
    exact_ms = float(rows[0][4])
    for _, exchange_ms, codec_ms, rest_ms, step_ms, saved_ms, *_ in rows:
        assert float(exchange_ms) + float(rest_ms) == pytest.approx(float(step_ms), abs=ROUNDED)
        assert float(step_ms) + float(saved_ms) == pytest.approx(exact_ms, abs=ROUNDED)
        assert float(codec_ms) <= float(exchange_ms)
    page = render_html(plan)
    assert all(f"<td>{row[3]}</td><td>{row[4]}</td>" in page for row in rows[1:])

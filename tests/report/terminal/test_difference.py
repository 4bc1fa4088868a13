"""What changes from one plan to another, as text and as a page."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_report.explain.difference import FieldChange, PlanDifference, plan_difference
from neuroshard_report.html.difference import render_difference_html
from neuroshard_report.terminal.difference import render_difference
from rich.console import Console
from support.planner.plan_builders import plan_of, random_tables

TABLES = random_tables(26)


def shown(found: PlanDifference, *, width: int = 160) -> list[str]:
    """Return the lines on a terminal."""
    console = Console(width=width, force_terminal=True, markup=False, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(render_difference(found))
    return capture.get().splitlines()


def fact(lines: Sequence[str], name: str) -> str:
    """Return the sentence of a fact."""
    return next(line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} "))


@pytest.fixture(scope="module")
def other() -> Plan:
    """Return a plan of the same tables whose shards are elsewhere."""
    return plan_of(*TABLES, split_every=3)


@pytest.fixture(scope="module")
def one() -> Plan:
    """Return a plan that halves few tables."""
    return plan_of(*TABLES)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_terminal_of_any_width_keeps_every_number(one: Plan, other: Plan, width: int) -> None:
    """Nothing is cut off, no line is wider, and each device that changes has its row."""
    found = plan_difference(one, other)
    lines = shown(found, width=width)
    text = " ".join(" ".join(lines).split())

    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert f"{len(found.tables)} of 26 tables" in text
    assert all(
        any(line.split()[:1] == [str(each.device)] for line in lines) for each in found.devices if each.received_bytes
    )
    assert all(each.name in text for each in found.tables[:20])


def test_equal_plans_have_no_tables_to_show(one: Plan) -> None:
    """One sentence says so."""
    lines = shown(plan_difference(one, one))

    assert fact(lines, "moves") == "none of 26 tables moves"
    assert fact(lines, "predicted").endswith("slowest device 0 -> 0") or "+0.000" in fact(lines, "predicted")
    assert not any(line.startswith("table") for line in lines)


def test_prices_that_cannot_be_compared_are_named(one: Plan, other: Plan) -> None:
    """By the sources of both, or by the plan that has none."""
    of_others = other.model_copy(update={"bundle": other.bundle.model_copy(update={"weights_sha256": "1" * 64})})
    bare = GivenPlan(algorithm=other.algorithm, tables=other.tables, request=other.request)

    assert fact(shown(plan_difference(one, of_others)), "prices").startswith("by different cost models")
    assert fact(shown(plan_difference(one, bare)), "predicted").startswith("one of the plans has no price")
    assert fact(shown(plan_difference(bare, bare)), "predicted").startswith("neither plan has a price")


def test_the_page_has_every_table_and_device_and_loads_nothing(one: Plan, other: Plan) -> None:
    """Names are text, whatever they are."""
    evil = plan_of(*TABLES[:3], name="<script>alert(1)</script>")
    found = plan_difference(one, other)
    page = render_difference_html(found)

    assert all(f'<th scope="row">{each.name}</th>' in page for each in found.tables)
    assert page.count('<th scope="row">') >= len(found.tables) + len(found.devices)
    assert "http" not in page
    assert "<script" not in render_difference_html(plan_difference(evil, evil))


def test_another_kind_of_device_is_told_by_its_name(one: Plan) -> None:
    """Its data sheet follows; sizes are in units that fit."""
    asked = (
        FieldChange(field="topology.device.name", before="h100-80gb", after="a100-80gb"),
        FieldChange(field="topology.device.clock_hz", before="1", after="2"),
        FieldChange(field="topology.inter_node.bandwidth_bytes_per_second", before="1", after="2"),
        FieldChange(field="memory.dense_bytes", before=None, after=str(4 * 2**30)),
    )
    lines = shown(replace(plan_difference(one, one), asked=asked))
    of_one_kind = shown(replace(plan_difference(one, one), asked=asked[1:]))

    assert fact(lines, "asked") == "topology.device.name: h100-80gb -> a100-80gb; memory.dense_bytes: not set -> 4 GiB"
    assert "topology.device.clock_hz: 1 -> 2" in fact(of_one_kind, "asked")

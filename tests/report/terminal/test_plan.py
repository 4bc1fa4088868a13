import re
from html import unescape

import pytest
from neuroshard_api.documents.batch_choice import BatchDecision, TriedBatch
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.topology import Link, Rack
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_report.html.page import render_html
from neuroshard_report.terminal.plan import render_plan
from rich.console import Console
from support.planner.plan_builders import in_collections, plan_of, random_tables, without_repeats


def _shown(plan: Plan, *, width: int = 200, is_terminal: bool = False) -> str:
    console = Console(width=width, force_terminal=is_terminal, markup=False, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(render_plan(plan))
    return capture.get()


def test_the_summary_says_what_a_plan_is_worth() -> None:
    """Predicted time, source, gain and distance to the bound are in the first lines."""
    text = _shown(plan_of())

    assert "source     simulated:Test Device 80GB; nothing was measured on a device" in text
    assert "15.3 % faster than lookup_greedy" in text
    assert "7.5 % above the lower bound" in text


def test_a_batch_that_was_chosen_is_shown_with_those_that_were_tried() -> None:
    """And with what becomes of learning rates, which are given at 8,192 samples per device; the page has it too."""
    plan = plan_of()
    request = plan.request.model_copy(update={"batch_size_per_device": 12_288})
    tried = (
        TriedBatch(samples_per_device=8192, samples_per_second=700_000.0),
        TriedBatch(samples_per_device=12_288, samples_per_second=812_000.0),
        TriedBatch(samples_per_device=16_384, problem="too large"),
    )
    chosen = plan.model_copy(update={"request": request, "batch": BatchDecision(tried=tried)})

    for text in (_shown(chosen), render_html(chosen)):
        assert "12,288 samples per device, chosen of 3 sizes; learning rates are the job's times 1.5" in unescape(text)
        assert "8,192 700K/s, 12,288 812K/s, 16,384 does not fit" in text
    assert "chosen of" not in _shown(plan)


def test_racks_are_named_with_their_links() -> None:
    """On a terminal their number, on the page the links of all levels."""
    plan = plan_of(num_nodes=4)
    link = Link(bandwidth_bytes_per_second=200e9, latency_seconds=1e-5)
    topology = plan.request.topology.model_copy(update={"rack": Rack(num_nodes=2, link=link)})
    racks = plan.model_copy(update={"request": plan.request.model_copy(update={"topology": topology})})

    assert "in 4 nodes, 2 racks of 2" in _shown(racks)
    assert "200.0 GB/s between the 2 nodes of a rack, 50.0 GB/s between racks" in render_html(racks)
    assert "rack" not in _shown(plan)


def test_a_pipe_sees_no_box_art_and_no_colour() -> None:
    """Lines are one row each of words and numbers."""
    assert re.search(r"[^\x00-\x7f]", _shown(plan_of())) is None


def test_a_terminal_of_eighty_columns_keeps_every_number() -> None:
    """Nothing is cut off with an ellipsis and no line is wider than the terminal."""
    lines = _shown(plan_of(), width=80, is_terminal=True).splitlines()

    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_every_device_has_a_bar_on_a_terminal() -> None:
    """Backward compute, the largest term, is drawn for each of eight devices, and once in the legend."""
    assert sum("█" in line for line in _shown(plan_of(), width=140, is_terminal=True).splitlines()) == 9


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_keeps_the_device_the_total_and_the_memory(width: int) -> None:
    """The parts of a step make room first, and the bars; no cell is cut."""
    plan = plan_of()
    lines = _shown(plan, width=width, is_terminal=True).splitlines()
    [header] = (number for number, line in enumerate(lines) if line.startswith("dev "))
    titles = lines[header].split()
    table = lines[header + 2 : header + 2 + len(plan.predicted.devices)]

    assert (titles[0], titles[-1], "total" in titles) == ("dev", "memory", True)
    assert [line.split()[0] for line in table] == [str(device) for device in range(8)]
    assert all(re.search(r"GiB \(\d+%\)|MiB \(\d+%\)", line) for line in table)
    assert any(line.startswith("bars: ") for line in lines) == (width == 80)


def test_devices_with_equal_numbers_share_a_row() -> None:
    """Copies alone load every device alike."""
    plan = plan_of()
    costs = plan.predicted.model_copy(update={"devices": plan.predicted.devices[:1] * 8})
    alike = plan.model_copy(update={"predicted": costs, "memory": plan.memory[:1] * 8})

    [row] = [line for line in _shown(alike).splitlines() if line.startswith("0-7 ")]

    assert row.endswith("%)")


def test_copies_come_after_tables_that_are_cut() -> None:
    """Which of them are cut, and where, is what the list is read for."""
    plan = plan_of()
    whole = plan.tables[1]
    copies = tuple(whole.shards[0].model_copy(update={"device": device}) for device in range(8))
    copied = whole.model_copy(update={"sharding_type": ShardingType.DATA_PARALLEL, "shards": copies})
    tables = (plan.tables[0], copied, *plan.tables[2:])
    text = _shown(plan.model_copy(update={"tables": tables}))
    rows = text[text.index("split table") :].splitlines()
    [place] = (number for number, row in enumerate(rows) if "data_parallel" in row)
    [last] = (number for number, row in enumerate(rows) if row.startswith("table_18 "))

    assert place == last + 1


def test_many_devices_are_shown_as_quantiles_and_extremes() -> None:
    """A thousand devices must not scroll past: four slowest, four fastest, and the spread of every term."""
    text = _shown(plan_of(*random_tables(3000), num_devices=1024, num_nodes=128))

    assert "over the devices" in text
    assert "..." in text
    assert len(text.splitlines()) < 50


def test_warnings_come_last() -> None:
    """The last lines are what is read first."""
    assert _shown(plan_of(warnings=("batch size is extrapolated",))).splitlines()[-1].startswith("warning: batch size")


def test_repeats_that_are_left_out_are_listed() -> None:
    """With their factor and what they save, and the cost of the best plan on all lists."""
    plan = without_repeats(plan_of())

    text = _shown(plan)

    assert re.search(r"user +1 +first_sample +7\.50", text)
    assert "the best plan on all lists takes" in text
    assert "repeats left out" not in _shown(plan_of())


def test_tables_of_several_modules_are_listed_by_module() -> None:
    """One line for each collection; a split table names its own."""
    text = _shown(in_collections(plan_of(), "towers.users", "towers.items"))

    assert re.search(r"^towers\.users +13 .* table_wise 11, column_wise 2 +0-5, 7 *$", text, flags=re.MULTILINE)
    assert re.search(r"^towers\.items +13 .* table_wise 12, column_wise 1 +0-2, 4-7 *$", text, flags=re.MULTILINE)
    assert re.search(r"^table_0 +towers\.users +", text, flags=re.MULTILINE)
    assert re.search(r"^table_9 +towers\.items +", text, flags=re.MULTILINE)
    assert "module" not in _shown(plan_of())


def test_a_plan_that_gains_nothing_is_as_fast_as_the_baseline() -> None:
    """Not 0.0 % slower, where the last digits of two sums differ."""
    plan = plan_of()
    equal_ms = plan.predicted.total_ms * (1 - 1e-9)
    same = tuple(each.model_copy(update={"total_ms": equal_ms}) for each in plan.baselines or ())

    assert f"baseline   as fast as {same[0].algorithm} (" in _shown(plan.model_copy(update={"baselines": same}))

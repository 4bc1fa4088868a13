import re
from html.parser import HTMLParser

import pytest
from neuroshard_api.documents.communication import CommunicationPlan, WireAlternative, WireType, WireTypes
from neuroshard_api.documents.dense_layout import DenseCost, DenseLayout, DenseMemory, DensePoint, PlannedUnit
from neuroshard_api.documents.gradient_exchange import GradientAlternative, GradientDecision, GradientType
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import BaselineCost
from neuroshard_api.documents.request import Algorithm
from neuroshard_report.html.page import render_html
from neuroshard_report.summary import COST_TERMS, MEMORY_TERMS, cost_terms
from support.builders import device_type, rank_times, step_report, table
from support.planner.placements import everywhere
from support.planner.plan_builders import (
    in_collections,
    plan_of,
    random_tables,
    with_managed_collision,
    without_repeats,
)

HOSTILE = '<script>alert("x")</script>'
VOID = {"meta", "input", "br", "path"}


class _Structure(HTMLParser):
    """Opens and closes elements as a browser does, and notes what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's id and whatever it would load."""
        self.scripts += tag == "script"
        named = dict(attrs)
        self.ids += [found] if (found := named.get("id")) else []
        self.links += [found for name in ("src", "href") if (found := named.get(name))]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be of this kind."""
        if tag not in VOID:
            assert self.open.pop() == tag


def _structure(page: str) -> _Structure:
    structure = _Structure()
    structure.feed(page)
    structure.close()
    assert structure.open == []
    return structure


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a plan of 26 tables on 8 devices."""
    return plan_of(warnings=("tables[3].pooling_factor is outside the trained range",))


def test_every_section_is_there(plan: Plan) -> None:
    """Headline, time, memory, map, split tables, baselines, ledger, tables, settings, use and warnings."""
    ids = _structure(render_html(plan)).ids

    sections = ["warnings", "time", "memory", "map", "split", "baselines", "ledger", "tables", "settings", "use"]
    assert [found for found in ids if found in sections] == sections


def test_nothing_is_loaded_from_elsewhere(plan: Plan) -> None:
    """The file works without a network: the only links point into the page."""
    page = render_html(plan)

    assert all(link.startswith("#") for link in _structure(page).links)
    assert not re.search(r"https?://|@import|url\(", page)


def test_simulated_numbers_are_called_simulated(plan: Plan) -> None:
    """A reader must not take the simulator's times for measured ones."""
    page = render_html(plan)

    assert "<strong>simulated</strong>" in page
    assert "nothing was measured on a device" in page


def test_a_measured_source_is_named_and_not_called_simulated(plan: Plan) -> None:
    """Measured bundles show the device they were measured on."""
    source = "measured:Test Device 80GB"
    measured = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"source": source})})
    page = render_html(measured)

    assert "<strong>measured</strong>" in page
    assert "nothing was measured on a device" not in page


def test_names_and_sentences_are_escaped() -> None:
    """Markup in a set's name, a product, a warning or a problem stays text."""
    plan = plan_of(
        name=HOSTILE, warnings=(HOSTILE,), baselines=(BaselineCost(algorithm=Algorithm.RANDOM, problem=HOSTILE),)
    )
    topology = plan.request.topology.model_copy(update={"device": device_type(product=HOSTILE)})
    tables = plan.request.tables.model_copy(update={"description": HOSTILE})
    request = plan.request.model_copy(update={"topology": topology, "tables": tables})
    page = render_html(plan.model_copy(update={"request": request}))

    assert HOSTILE not in page
    assert _structure(page).scripts == _structure(render_html(plan_of())).scripts


def test_equal_plans_give_equal_reports(plan: Plan) -> None:
    """No clock, no random order."""
    assert render_html(plan) == render_html(Plan.from_json(plan.to_json()))


def test_pairs_of_types_have_a_section_with_the_decision_on_each(plan: Plan) -> None:
    """Price and refusal; a plan that had no choice has none."""
    priced = WireAlternative(forward=WireType.INT8, exchange_ms=1.5, codec_ms=0.1, saved_ms=0.01, refusal="saves <1 %")
    decided = CommunicationPlan(
        chosen=WireTypes(), exact_ms=3.0, exact_exchange_ms=2.0, alternatives=(priced,), reason="nothing saves 2 %"
    )

    page = render_html(plan.model_copy(update={"communication": decided}))

    assert "narrow" in _structure(page).ids
    assert "INT8 forward, FP32 backward" in page
    assert "saves &lt;1 %" in page
    assert "narrow" not in _structure(render_html(plan)).ids


def test_types_of_gradients_have_a_section_with_the_decision_on_each(plan: Plan) -> None:
    """Price and refusal; a plan that had no choice has none."""
    refused = GradientAlternative(
        type=GradientType.BF16, exposed_ms=1.5, codec_ms=0.1, saved_ms=0.01, refusal="below <2 %"
    )
    decided = GradientDecision(
        chosen=GradientType.FP32, exact_exposed_ms=3.0, alternatives=(refused,), reason="nothing saves 2 %"
    )

    page = render_html(plan.model_copy(update={"gradients": decided}))

    assert "gradients" in _structure(page).ids
    assert "exact: nothing saves 2 %. In FP32, 3.00 ms of their collectives" in page
    assert "below &lt;2 %" in page
    assert "gradients" not in _structure(render_html(plan)).ids


def test_one_table_on_one_device_has_a_report() -> None:
    """The smallest plan: nothing split, nothing compared, no spread, and no section on what it lacks."""
    page = render_html(plan_of(table("only"), num_devices=1, split_every=0, baselines=()))

    assert "split" not in _structure(page).ids
    assert "times the mean" not in page
    assert "slowest device has finished" not in page
    assert "no baseline was asked for" in page


def test_a_plan_without_any_cost_has_a_report() -> None:
    """All times zero: no division by the total."""
    plan = plan_of(table("only"), num_devices=2)
    free = plan.predicted.devices[0].model_copy(
        update={name: 0.0 for name in type(plan.predicted.devices[0]).model_fields if name.endswith("_ms")}
    )
    predicted = plan.predicted.model_copy(update={"total_ms": 0.0, "devices": (free, free)})
    page = render_html(
        plan.model_copy(update={"predicted": predicted, "lower_bound_ms": 0.0, "gap": 0.0, "baselines": ()})
    )

    assert "No device has any predicted cost" in page


@pytest.mark.parametrize(
    ("num_tables", "num_devices", "megabytes"), [(600, 64, 0.5), (5000, 256, 2.0), (12_000, 1024, 3.0)]
)
def test_large_plans_stay_small_files(num_tables: int, num_devices: int, megabytes: float) -> None:
    """Many devices become a strip, extremes and quantiles; of very many tables the most read are listed."""
    page = render_html(plan_of(*random_tables(num_tables), num_devices=num_devices, num_nodes=num_devices // 8))

    assert len(page.encode()) < megabytes * 1e6
    assert page.count('<tr><th scope="row">table_') <= 5500
    assert f"device {num_devices - 1}" in page


def test_repeats_that_are_left_out_have_a_section(plan: Plan) -> None:
    """With group, factor, form, and features, and with the cost on all lists; other plans have none."""
    page = render_html(without_repeats(plan))

    section = page.partition('<h2 id="repeats">')[2].partition("</section>")[0]
    assert "table_0" in section
    assert "<td>7.50</td>" in section
    assert "first sample" in section
    assert f"{2 * plan.predicted.total_ms:.3g}"[:3] in section
    assert "expansion" in page
    assert 'id="repeats"' not in render_html(plan)
    assert "expansion" not in render_html(plan)


def _with_every_cost(plan: Plan) -> Plan:
    """Return the plan with each term of the time on one device."""
    terms = {field: getattr(plan.predicted.devices[0], field) or 0.5 for field, _ in cost_terms(plan)}
    first = plan.predicted.devices[0].model_copy(update=terms)
    predicted = plan.predicted.model_copy(update={"devices": (first, *plan.predicted.devices[1:])})
    return plan.model_copy(update={"predicted": predicted})


def test_a_part_of_the_time_that_no_device_has_is_left_out(plan: Plan) -> None:
    """By columns in device memory: no dense updates, no host memory; a device that has them brings them back."""
    never = {"dense update", "host memory"}
    section = render_html(plan).partition('id="time"')[2].partition("</section>")[0]
    names = re.findall(r'class="swatch c\d+"></span>([^<]+)', section)

    assert not any(device.dense_update_ms or device.host_link_ms for device in plan.predicted.devices)
    assert {"forward compute", "backward compute"} <= set(names)
    assert not any(name in section for name in never)
    assert all(name in render_html(_with_every_cost(plan)) for name in never)


def test_every_term_of_a_legend_has_a_color_of_its_own(plan: Plan) -> None:
    """In the light and in the dark palette; a class without one would be an invisible bar, and black in a strip."""
    whole = _with_every_cost(with_managed_collision(without_repeats(plan), 2**30))
    every = dict.fromkeys((field for field, _ in MEMORY_TERMS), 2**20)
    page = render_html(whole.model_copy(update={"memory": tuple(m.model_copy(update=every) for m in whole.memory)}))
    classes = set(re.findall(r'class="swatch ([cm]\d+)"', page))
    palettes = [
        colors
        for rules in re.findall(r":root \{(.*?)\}", page, flags=re.DOTALL)
        if (colors := dict(re.findall(r"--([cm]\d+): (#\w+)", rules)))
    ]

    assert len(classes) == len(COST_TERMS) + 1 + len(MEMORY_TERMS) + 1
    for each in classes:
        assert f".{each} {{ background: var(--{each}); fill: var(--{each}); }}" in page
    assert len(palettes) == 2
    for colors in palettes:
        assert set(colors) == classes
        assert len({color for each, color in colors.items() if each.startswith("m")}) == len(MEMORY_TERMS) + 1


def test_tables_are_grouped_by_module(plan: Plan) -> None:
    """Each collection has a line, and the tables of one follow each other, each with the path."""
    page = render_html(in_collections(plan, "towers.users", "towers.items"))
    section = page.partition('id="modules"')[2].partition("</section>")[0]
    listed = page.partition('id="table-list"')[2].partition("</table>")[0]

    assert re.findall(r'<th scope="row">([\w.]+)</th><td>(\d+)</td>', section) == [
        ("towers.users", "13"),
        ("towers.items", "13"),
    ]
    assert re.findall(r'<td class="text module">([\w.]+)</td>', listed) == ["towers.users"] * 13 + ["towers.items"] * 13
    _structure(page)
    assert 'id="modules"' not in render_html(plan)
    assert ">module<" not in render_html(plan)


def test_managed_collision_is_a_term_of_the_ledger(plan: Plan) -> None:
    """Where a device has memory for it alone."""
    assert "managed collision" in render_html(with_managed_collision(plan, 2**30))
    assert "managed collision" not in render_html(plan)


@pytest.mark.parametrize("num_points", [0, 1, 2])
def test_a_dense_part_is_drawn_where_its_plan_has_a_frontier(plan: Plan, num_points: int) -> None:
    """The field may be left out: then the page has no drawing of it."""
    memory = DenseMemory(
        weights_bytes=1, gradient_bytes=0, optimizer_state_bytes=0, activation_bytes=0, transient_bytes=0
    )
    layout = DenseLayout(
        units=(PlannedUnit(module="over_arch", checkpointed=True),),
        num_parameters=1,
        memory=memory,
        replicated_bytes=4,
        compute_ms=2.0,
        exposed_ms=0.0,
        replicated_ms=1.0,
        source="simulated:test-80gb",
        frontier=tuple(DensePoint(memory_bytes=1 + place, dense_ms=2.0 - place) for place in range(num_points)),
    )

    page = render_html(plan.model_copy(update={"dense": layout}))

    assert ("time of the dense part over its memory" in page) == (num_points > 0)


def test_passes_of_the_dense_part_are_shown_predicted_and_measured(plan: Plan) -> None:
    """Measured are those of the slowest rank; without either, the page has no section of the dense part."""
    predicted = plan.model_copy(
        update={"replicated_dense": DenseCost(compute_ms=2.5, exposed_ms=0.25, source="simulated:test-80gb")}
    )
    slow = {"dense_forward_ms": 3.0, "dense_backward_ms": 4.125, "dense_collectives_ms": 1.5}
    fast = dict.fromkeys(slow, 1.0)
    steps = step_report(ranks=(rank_times(0, **fast), rank_times(1, **slow)))

    page = render_html(predicted, steps=steps)

    assert "<td>2.50</td><td>0.250</td><td>2.75</td>" in page
    assert "measured, rank 1</th><td>7.12</td><td>1.50</td><td>8.62</td>" in page
    assert "Passes of a step" not in render_html(plan, steps=step_report())
    assert '<h2 id="dense">' not in render_html(plan)


def test_cut_and_copied_tables_are_counted_apart(plan: Plan) -> None:
    """Each count has its reason; a copied table is not called cut."""
    first, second, *others = plan.request.tables.tables
    copied = [everywhere(each, plan.request.topology) for each in (first, second)]
    page = render_html(plan.model_copy(update={"tables": (*copied, *plan.tables[2:])}))

    assert f"2 of {2 + len(others)} are copied to all devices" in page
    assert "2 of 26 tables are cut" in page
    assert "copied" not in render_html(plan).partition('id="split"')[2].partition("</section>")[0]


def test_lookups_have_six_digits_at_most() -> None:
    """A mean that was drawn or counted has as many digits as a float; the list of tables stays readable."""
    page = render_html(plan_of(table(embedding_dim=64, pooling_factor=61.21059971170507), split_every=1))

    assert page.count("<td>61.2106</td>") == 2

from collections.abc import Callable

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import BaselineCost, CollectiveCost
from neuroshard_api.documents.request import Algorithm, ComputePeak, Constraints
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.step_cost import predicted_cost
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import GroupLayout, Replication
from neuroshard_report.html.page import render_html
from neuroshard_report.summary import index_ranges, summarize
from neuroshard_report.terminal.plan import render_plan
from rich.console import Console
from support.builders import request, table, tables, topology
from support.planner.plan_builders import plan_of, random_tables
from support.planner.searches import planned


def terminal_text(plan: Plan) -> str:
    """Return the plan as a wide pipe sees it."""
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(render_plan(plan))
    return capture.get()


def test_the_slowest_device_is_the_one_that_gives_the_total() -> None:
    """Its five terms sum to the plan's predicted time, and the bound names it."""
    plan = plan_of()
    summary = summarize(plan)

    assert summary.slowest.cost.total_ms == pytest.approx(plan.predicted.total_ms)
    assert summary.bound.startswith(f"Device {summary.slowest.index} decides the step")


def test_of_joint_passes_the_device_that_computes_longest_is_the_slowest() -> None:
    """All devices have the same total; naming any of them would blame the wrong tables."""
    plan = planned(request(*tables(5, pooling_factor=20.0), num_devices=2, compute_peak=ComputePeak.JOINT))
    summary = summarize(plan)
    longest = max(summary.devices, key=lambda device: device.cost.compute_ms)

    assert summary.devices[0].cost.total_ms == pytest.approx(summary.devices[1].cost.total_ms)
    assert summary.slowest == longest == summary.extremes(1)[0]
    assert predicted_cost(plan).compute_microseconds == round(1000 * longest.cost.compute_ms)


def test_the_gain_is_against_the_cheapest_baseline() -> None:
    """Baselines without a plan do not count."""
    plan = plan_of()
    summary = summarize(plan)

    assert summary.best_baseline is not None
    assert summary.best_baseline.algorithm is Algorithm.LOOKUP_GREEDY
    assert summary.gain == pytest.approx(1 - 1 / 1.18)


def test_there_is_no_gain_without_a_baseline_that_found_a_plan() -> None:
    """A comparison with nothing is not shown as zero."""
    summary = summarize(plan_of(baselines=(BaselineCost(algorithm=Algorithm.RANDOM, problem="too large"),)))

    assert summary.gain is None


def test_a_device_without_tables_fills_only_its_settings_share() -> None:
    """Empty devices still carry the dense part and the reserve."""
    summary = summarize(plan_of(table("only"), num_devices=4))

    assert [device.num_shards for device in summary.devices] == [1, 1, 0, 0]
    assert summary.devices[3].memory.weights_bytes == 0
    assert summary.devices[3].memory_bytes > 0


def test_extremes_leave_out_the_middle() -> None:
    """The slowest come first, the fastest last."""
    summary = summarize(plan_of(*random_tables(60), num_devices=20))
    shown = summary.extremes(3)
    totals = [device.cost.total_ms for device in shown]

    assert len(shown) == 6
    assert totals == sorted(totals, reverse=True)
    assert shown[0] == summary.slowest


def test_quantiles_run_from_least_to_most() -> None:
    """Every term of the cost and the total is spread over all devices."""
    spreads = summarize(plan_of(*random_tables(60), num_devices=20)).cost_quantiles()

    assert [spread.name for spread in spreads][-1] == "total"
    assert all(spread.least <= spread.median <= spread.p95 <= spread.most for spread in spreads)


@pytest.mark.parametrize(
    ("indices", "text"), [((), ""), ((4,), "4"), ((0, 1, 2, 3, 7), "0-3, 7"), ((1, 3, 5), "1, 3, 5")]
)
def test_runs_of_devices_are_drawn_together(indices: tuple[int, ...], text: str) -> None:
    """A table on sixty-four devices is named in one phrase."""
    assert index_ranges(indices) == text


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ((None, None), "nothing was measured on a device"),
        ((0.05, None), "compute fitted to measurements, exchanges from the simulator"),
        ((None, 0.05), "exchanges fitted to measurements, compute from the simulator"),
        ((0.05, 0.1), "compute and exchanges fitted to measurements"),
    ],
    ids=["simulated", "compute measured", "exchanges measured", "both measured"],
)
@pytest.mark.parametrize("shown", [render_html, terminal_text], ids=["page", "terminal"])
def test_the_source_never_contradicts_the_error(
    shown: Callable[[Plan], str], measured: tuple[float | None, float | None], expected: str
) -> None:
    """Where an error on measurements is shown, nobody claims that nothing was measured."""
    plan = plan_of()
    compute, communication = measured
    update = {"measured_compute_mape": compute, "measured_communication_mape": communication}
    text = shown(plan.model_copy(update={"bundle": plan.bundle.model_copy(update=update)}))

    assert expected in text
    assert ("nothing was measured" in text) == (measured == (None, None))


def test_groups_are_a_sentence_with_the_time_of_their_averages() -> None:
    """Also where all tables are by columns, whose other collectives are not listed one by one."""
    average = CollectiveCost(kind=CollectiveKind.SYNC, backward_ms=0.5, num_bytes=2**20)
    plan = planned(
        request(
            *tables(3),
            num_devices=2,
            optimizer=Optimizer.SGD,
            constraints=Constraints(sharding_types=(ShardingType.TABLE_WISE,)),
        )
    )
    devices = tuple(each.model_copy(update={"collectives": (average,)}) for each in plan.predicted.devices)
    replication = Replication(num_groups=2, layout=GroupLayout.STRIDED, whole_ms=9.0)
    predicted = plan.predicted.model_copy(update={"devices": devices})
    world = plan.request.model_copy(update={"topology": topology(4)})
    grouped = plan.model_copy(update={"predicted": predicted, "replication": replication, "request": world})
    summary = summarize(grouped)

    assert summary.groups == (
        "2 strided groups of 2 devices, averaged after each step: 0.500 ms of a step; "
        "without groups the step takes 9.00 ms"
    )
    assert [each.kind for each in summary.collectives] == [CollectiveKind.SYNC]
    assert summarize(plan).groups == ""
    assert "embedding tables on 4 " in render_html(grouped)

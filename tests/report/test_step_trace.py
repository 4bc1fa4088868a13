"""A step as a trace: what Perfetto reads, next to the numbers that it is of."""

import json
from itertools import pairwise
from typing import Any

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.step_report import StepReport
from neuroshard_report.step_trace import MEASURED_PID, PREDICTED_PID, step_trace
from support.builders import rank_times, step_report
from support.planner.plan_builders import plan_of

PLAN = plan_of(num_devices=4)


def tracks(plan: Plan, steps: StepReport | None = None) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the slices by process and track."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in json.loads(step_trace(plan, steps))["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["tid"]), []).append(event)
    return found


def test_the_predicted_step_of_each_rank_is_a_track() -> None:
    """As long as its cost and the dense part, without gaps, in the order of a step."""
    found = tracks(PLAN)

    assert list(found) == [(PREDICTED_PID, rank) for rank in range(4)]
    dense_ms = (PLAN.step.dense_ms or 0.0) if PLAN.step else 0.0
    for rank, slices in enumerate(found.values()):
        cost = PLAN.predicted.devices[rank]
        assert sum(each["dur"] for each in slices) == pytest.approx(1000 * (cost.total_ms + dense_ms), abs=0.01)
        assert all(before["ts"] + before["dur"] == pytest.approx(after["ts"]) for before, after in pairwise(slices))
        names = [each["name"] for each in slices]
        assert names.index("forward compute") < names.index("forward exchange") < names.index("backward compute")


def test_the_measured_step_is_below_it() -> None:
    """A process of its own that says what was measured; parts that took no time have no slice."""
    ranks = (rank_times(0, input_communication_ms=0.0, dense_ms=9.0, dense_forward_ms=2.0), rank_times(1))
    steps = step_report(ranks=ranks, first_step=100)
    events = json.loads(step_trace(PLAN, steps))["traceEvents"]

    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes[MEASURED_PID] == "measured: simulated:test-80gb, medians of steps 100 to 200"
    first = {each["name"]: each["dur"] for each in tracks(PLAN, steps)[MEASURED_PID, 0]}
    assert "index exchange" not in first
    assert (first["dense forward"], first["rest of the step"], first["forward compute"]) == (2000, 7000, 1000)

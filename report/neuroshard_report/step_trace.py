"""A predicted step and a measured one as a trace: one process each, one track per rank, which Perfetto and Chrome show.

The measured step is of medians: each part as long as its median, one after the other, in the order of a step.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceCost
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.sharding.collectives import CollectiveKind

PREDICTED_PID, MEASURED_PID = 1, 2
US_PER_MS: Final = 1000.0
_Parts = Sequence[tuple[str, float]]
"""Names, and milliseconds, in the order of a step."""


def step_trace(plan: Plan, steps: StepReport | None = None) -> str:
    """Return JSON in the trace event format. Equal arguments give equal traces.

    Args:
        plan: whose predicted step is shown.
        steps: measured under it. If unset: the prediction alone.
    """
    places = {rank: place for members in plan.groups for place, rank in enumerate(members)}
    costs = {rank: plan.predicted.devices[places[rank]] for rank in sorted(places)}
    events = [
        *_process(PREDICTED_PID, f"predicted: {plan.predicted.source}"),
        *(
            event
            for rank, cost in costs.items()
            for event in _track(PREDICTED_PID, rank, _predicted(cost, plan), _collectives(cost))
        ),
    ]
    if plan.servers is not None and plan.servers.predicted is not None:
        for process, cost in enumerate(plan.servers.predicted.devices):
            events += _track(PREDICTED_PID, plan.num_devices + process, _on_server(cost), {})
    if steps is not None:
        medians = f"medians of steps {steps.first_step} to {steps.first_step + steps.num_steps}"
        events += _process(MEASURED_PID, f"measured: {steps.source}, {medians}")
        for times in steps.ranks:
            events += _track(MEASURED_PID, times.rank, _measured(times), _collectives(times))
    about = {"plan": plan.request.tables.name, "made_by": "neuroshard export --format perfetto"}
    return json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, indent=1) + "\n"


def _predicted(cost: DeviceCost, plan: Plan) -> _Parts:
    step = plan.step
    return (
        ("index exchange", cost.input_communication_ms),
        ("forward compute", cost.forward_compute_ms),
        ("wait for slower ranks", cost.wait_ms),
        ("forward exchange", cost.forward_communication_ms),
        ("expansion of repeats", cost.expansion_ms or 0.0),
        ("dense part", (step.dense_ms or 0.0) if step is not None else 0.0),
        ("backward exchange", cost.backward_communication_ms),
        ("backward compute", cost.backward_compute_ms),
        ("rows from host memory", cost.host_link_ms),
        ("wait for servers", cost.server_exposed_ms),
        ("updates of copied tables", cost.dense_update_ms),
    )


def _on_server(cost: DeviceCost) -> _Parts:
    return (
        ("ids from trainers", cost.input_communication_ms),
        ("lookups on the server", cost.forward_compute_ms),
        ("wait for slower servers", cost.wait_ms),
        ("pooled embeddings to trainers", cost.forward_communication_ms),
        ("gradients from trainers", cost.backward_communication_ms),
        ("updates on the server", cost.backward_compute_ms),
    )


def _measured(times: RankTimes) -> _Parts:
    passes = (
        ("dense forward", times.dense_forward_ms or 0.0),
        ("dense backward", times.dense_backward_ms or 0.0),
        ("dense collectives", times.dense_collectives_ms or 0.0),
    )
    rest_ms = max(0.0, times.dense_ms - sum(ms for _, ms in passes))
    return (
        ("wait for data", times.data_wait_ms),
        ("index exchange", times.input_communication_ms),
        ("forward compute", times.forward_compute_ms),
        ("forward exchange and wait", times.forward_communication_ms),
        ("expansion of repeats", times.expansion_ms),
        ("wait for servers", times.server_ms or 0.0),
        *passes,
        ("rest of the step", rest_ms),
        ("backward exchange", times.backward_communication_ms),
        ("backward compute", times.backward_compute_ms),
    )


def _collectives(holder: DeviceCost | RankTimes) -> Mapping[str, Mapping[str, float]]:
    """Return the collectives of the exchanges by the exchange's name, in milliseconds."""
    ways: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
    for each in holder.collectives:
        if each.kind is CollectiveKind.INDICES:
            continue  # a part of its own
        name = f"{each.kind.value}{f' of {each.family.value}' if each.family else ''}"
        ways["forward"][name] = round(each.forward_ms, 6)
        ways["backward"][name] = round(each.backward_ms, 6)
    return {
        f"{way} exchange{suffix}": {name: ms for name, ms in found.items() if ms}
        for way, found in ways.items()
        for suffix in ("", " and wait")
    }


def _process(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}}


def _track(
    pid: int, rank: int, parts: _Parts, collectives: Mapping[str, Mapping[str, float]]
) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}}
    begin_us = 0.0
    for name, ms in parts:
        if ms:
            took_us = round(US_PER_MS * ms, 3)
            event: dict[str, Any] = {"ph": "X", "pid": pid, "tid": rank, "name": name, "cat": "step"}
            yield event | {"ts": round(begin_us, 3), "dur": took_us, "args": {**collectives.get(name, {})}}
            begin_us += took_us

"""The parts of a step under a plan, which sum to its price, each with the device that decides it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import ComputePeak
from neuroshard_costs.averages import average_ms
from neuroshard_costs.step_cost import BACKWARD, FORWARD
from neuroshard_planner.problem.problem import Placement, Problem

from neuroshard_report.explain.alone import of_group


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One part of the step, and the device that decides it."""

    name: str
    """Forward or backward compute; input, forward or backward communication; dense update."""
    ms: float
    share: float
    """Of the step; the shares sum to 1."""
    device: int
    """The slowest device; in communication the one with most columns."""


def step_terms(plan: Plan, problem: Problem, placement: Placement) -> tuple[Term, ...]:
    """Return the parts of a step, largest first.

    A pass lasts as long as its slowest device, host memory included; another device may decide the other pass.

    Args:
        plan: with its groups of devices, where it has some.
        problem: of the plan's request, which is that of one group.
        placement: of the plan's tables.
    """
    devices = of_group(plan).predicted.devices
    widest = max(range(len(devices)), key=lambda device: devices[device].embedding_dim_sum)

    def term(name: str, ms: float, device: int) -> Term:
        share = ms / plan.predicted.total_ms if plan.predicted.total_ms else 0.0
        return Term(name=name, ms=ms, share=share, device=device)

    compute = np.array([(device.forward_compute_ms, device.backward_compute_ms) for device in devices])
    host = problem.host_ms(problem.device_sums(placement.kinds, placement.devices)).astype(np.float64)
    slowest: Sequence[int] = (compute + host).argmax(axis=0).tolist()
    if plan.request.compute_peak is ComputePeak.JOINT:
        slowest = [int((compute + host).sum(axis=1).argmax())] * 2
    host_ms = [float(host[device, direction]) for direction, device in enumerate(slowest)]
    first, averages = devices[widest], average_ms(plan)
    found = (
        ("forward compute", float(compute[slowest[FORWARD], FORWARD]), slowest[FORWARD]),
        ("backward compute", float(compute[slowest[BACKWARD], BACKWARD]), slowest[BACKWARD]),
        ("input communication", first.input_communication_ms, widest),
        ("forward communication", first.forward_communication_ms, widest),
        ("backward communication", first.backward_communication_ms, widest),
        *([("dense update", first.dense_update_ms, widest)] if first.dense_update_ms else []),
        *([("host memory", sum(host_ms), slowest[int(np.argmax(host_ms))])] if any(host_ms) else []),
        *([("expansion", first.expansion_ms, widest)] if first.expansion_ms else []),
        *([("averages of copies", averages, widest)] if averages else []),
        *([("wait for servers", first.server_exposed_ms, widest)] if first.server_exposed_ms else []),
    )
    return tuple(sorted(starmap(term, found), key=lambda each: -each.ms))

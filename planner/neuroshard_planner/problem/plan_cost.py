"""What a placement costs, device by device, under a cost model or under the device simulator."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from neuroshard_api.documents.communication import WIRE_FORMATS
from neuroshard_api.documents.plan_parts import CollectiveCost, DeviceCost, PlanCost
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.exchanges import encoded_exchange
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray
from neuroshard_costs.simulator.device import DeviceSimulator
from neuroshard_costs.step_cost import FORWARD, Collective, StepCost, added_calls_ms

from neuroshard_planner.problem.problem import Placement, Problem

KINDS = {
    Collective.INDICES: (CollectiveKind.INDICES, None),
    Collective.POOLED_EMBEDDINGS: (CollectiveKind.ALL_TO_ALL, Family.COLUMNS),
    Collective.SEQUENCE_ROWS: (CollectiveKind.ALL_TO_ALL, Family.ROWS),
    Collective.ROW_SUMS: (CollectiveKind.REDUCE_SCATTER, Family.ROWS),
    Collective.NODE_ROW_SUMS: (CollectiveKind.REDUCE_SCATTER, Family.NODE_ROWS),
    Collective.GRADIENTS: (CollectiveKind.ALL_REDUCE, Family.REPLICATED),
}
"""Kind and family of every collective, in the order of a plan document."""


def predicted_cost(problem: Problem, placement: Placement, source: str) -> PlanCost:
    """Return the cost that the problem's cost model predicts."""
    times = problem.compute_ms(problem.device_sums(placement.kinds, placement.devices)).astype(np.float64)
    return _cost(problem, placement, times, problem.step_cost, source)


def simulated_cost(problem: Problem, placement: Placement) -> PlanCost:
    """Return the cost that the simulator of the request's device gives, without noise; labelled ``simulated:``.

    Each device makes a call per family and data type; the collectives run over the request's topology. The all-to-all
    of pooled embeddings has the mean columns of the tables that take part, where the objective has to bound them.
    """
    request = problem.request
    simulator = DeviceSimulator(request.topology.device)
    shards, position = problem.shards_of(placement.kinds)
    times = simulator.compute_ms(shards, placement.devices[position], problem.num_devices, pipeline=request.pipeline)
    times = times + _host_ms(problem, placement)
    columns = device_traffic(problem, placement)[:, Collective.POOLED_EMBEDDINGS]
    exact: dict[Collective, tuple[float, float]] = {}
    if columns.any():
        exchange = encoded_exchange(request).of_mean(float(columns.mean()))
        times_ms = exchange.times_ms(columns.max(), simulator) + added_calls_ms(problem.priced, simulator)
        forward_ms, backward_ms = times_ms.tolist()
        exact = {Collective.POOLED_EMBEDDINGS: (forward_ms, backward_ms)}
    return _cost(problem, placement, times, StepCost(problem.priced, simulator), simulator.source, exact_ms=exact)


def device_traffic(problem: Problem, placement: Placement) -> FloatArray:
    """Return [devices, collectives] the traffic of each device."""
    return problem.traffic(placement.kinds, placement.devices, problem.num_devices)


def _host_ms(problem: Problem, placement: Placement) -> FloatArray:
    """Return [devices, 2] the part of the compute times that host memory takes."""
    return problem.host_ms(problem.device_sums(placement.kinds, placement.devices)).astype(np.float64)


def _cost(
    problem: Problem,
    placement: Placement,
    compute_ms: FloatArray,
    exchanges: StepCost,
    source: str,
    *,
    exact_ms: Mapping[Collective, tuple[float, float]] = MappingProxyType({}),
) -> PlanCost:
    """Return the cost of a step.

    The forward collectives end when the last device has sent: a device that finishes its forward compute early
    waits (start skew). The backward collectives start on all devices at once, after the dense part.

    Args:
        problem: of the placement.
        placement: that costs.
        compute_ms: [devices, 2] with what host memory takes.
        exchanges: prices the traffic.
        source: of the prices.
        exact_ms: forward and backward time of collectives that are known better.
    """
    request, host_ms = problem.request, _host_ms(problem, placement)
    traffic = device_traffic(problem, placement)
    pooled_columns = problem.pooled_columns(placement.kinds, placement.devices, problem.num_devices)
    passes, highest = problem.step_cost.passes(compute_ms), traffic.max(axis=0)
    compute_peaks = passes.max(axis=0)
    directions_ms = {**exchanges.directions_ms(highest), **exact_ms}
    has_inputs = highest[Collective.INDICES] > 0
    input_ms = float(exchanges.input_ms(np.concatenate((compute_peaks, highest)))) if has_inputs else 0.0
    # From 0.0 on: a sum of none is a whole number.
    forward_ms, backward_ms = (sum((each[side] for each in directions_ms.values()), 0.0) for side in (0, 1))
    dense_update_ms = float(exchanges.dense_update_ms(highest))
    if has_inputs:
        directions_ms[Collective.INDICES] = (input_ms, 0.0)
    wait = (compute_peaks - passes)[:, FORWARD]
    expansion_ms, added_ms = problem.step_cost.expansion_ms, problem.step_cost.added_compute_ms
    column_bytes = request.global_batch_size * BYTES_PER_ELEMENT[request.memory.output_data_type]

    def collective(kind: Collective, own_traffic: float) -> CollectiveCost:
        name, family = KINDS[kind]
        unit_bytes = 1 if kind in {Collective.INDICES, Collective.GRADIENTS} else column_bytes
        forward, backward = directions_ms[kind]
        sent_bytes, received_bytes = round(own_traffic * unit_bytes), None
        if kind is Collective.POOLED_EMBEDDINGS and request.wire is not None:
            columns, types = round(own_traffic), (request.wire.forward, request.wire.backward)
            sent_bytes, received_bytes = (
                WIRE_FORMATS[each].sent_bytes(columns, request.global_batch_size, pads=is_forward)
                for each, is_forward in zip(types, (True, False), strict=True)
            )
        return CollectiveCost(
            kind=name,
            family=family,
            forward_ms=forward,
            backward_ms=backward,
            num_bytes=sent_bytes,
            backward_num_bytes=received_bytes,
        )

    used = [kind for kind in KINDS if kind in directions_ms]
    devices = tuple(
        DeviceCost(
            forward_compute_ms=float(forward),
            backward_compute_ms=float(backward),
            wait_ms=float(wait[device]),
            input_communication_ms=input_ms,
            forward_communication_ms=forward_ms,
            backward_communication_ms=backward_ms,
            dense_update_ms=dense_update_ms,
            host_link_ms=float(host_ms[device].sum()),
            expansion_ms=expansion_ms or None,
            collectives=tuple(collective(kind, float(traffic[device, kind])) for kind in used),
            embedding_dim_sum=round(pooled_columns[device]),
        )
        for device, (forward, backward) in enumerate((np.maximum(compute_ms - host_ms, 0.0) + added_ms).tolist())
    )
    total = float(compute_peaks.sum()) + input_ms + forward_ms + backward_ms + dense_update_ms
    return PlanCost(total_ms=total + problem.step_cost.fixed_ms, source=source, devices=devices)

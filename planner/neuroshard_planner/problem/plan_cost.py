"""What a placement costs, device by device, under a cost model or under the device simulator."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from neuroshard_api.documents.communication import WIRE_FORMATS
from neuroshard_api.documents.plan import CollectiveCost, DeviceCost, PlanCost
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.exchanges import encoded_exchange
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray
from neuroshard_costs.simulator.device import DeviceSimulator

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import FORWARD, Collective, StepCost, added_calls_ms

KINDS = {
    Collective.INDICES: (CollectiveKind.INDICES, None),
    Collective.POOLED_EMBEDDINGS: (CollectiveKind.ALL_TO_ALL, Family.COLUMNS),
    Collective.SEQUENCE_ROWS: (CollectiveKind.ALL_TO_ALL, Family.ROWS),
    Collective.ROW_SUMS: (CollectiveKind.REDUCE_SCATTER, Family.ROWS),
    Collective.NODE_ROW_SUMS: (CollectiveKind.REDUCE_SCATTER, Family.NODE_ROWS),
    Collective.GRADIENTS: (CollectiveKind.ALL_REDUCE, Family.REPLICATED),
}
"""Kind and family of every collective, in the order of a plan document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanges:
    """Milliseconds that the exchanges of a step add to it, and what computed them."""

    directions_ms: Mapping[Collective, tuple[float, float]]
    """Forward and backward, of the collectives in use; indices included, forward, unless hidden."""
    dense_update_ms: float
    source: str

    @property
    def input_ms(self) -> float:
        """Of the exchange of indices."""
        return self.directions_ms.get(Collective.INDICES, (0.0, 0.0))[FORWARD]

    def output_ms(self, direction: int) -> float:
        """Return the sum of all others in a direction."""
        others = (times for collective, times in self.directions_ms.items() if collective is not Collective.INDICES)
        return sum((times[direction] for times in others), 0.0)


def predicted_cost(problem: Problem, placement: Placement, source: str) -> PlanCost:
    """Return the cost that the problem's cost model predicts."""
    traffic = device_traffic(problem, placement)
    sums = problem.device_sums(placement.kinds, placement.devices)
    times, host_ms = problem.compute_ms(sums).astype(np.float64), problem.host_ms(sums).astype(np.float64)
    exchanges = _exchanges(problem.step_cost, times, traffic, source)
    pooled = problem.pooled_columns(placement.kinds, placement.devices, problem.num_devices)
    return device_costs(problem, times, traffic, exchanges, host_ms=host_ms, pooled_columns=pooled)


def simulated_cost(problem: Problem, placement: Placement) -> PlanCost:
    """Return the cost that the simulator of the request's device gives, without noise; labelled ``simulated:``.

    Each device makes a call per family and data type; the collectives run over the request's topology. The all-to-all
    of pooled embeddings has the mean columns of the tables that take part, where the objective has to bound them.
    """
    request = problem.request
    simulator = DeviceSimulator(request.topology.device)
    shards, position = problem.shards_of(placement.kinds)
    times = simulator.compute_ms(shards, placement.devices[position], problem.num_devices, pipeline=request.pipeline)
    host_ms = problem.host_ms(problem.device_sums(placement.kinds, placement.devices)).astype(np.float64)
    times = times + host_ms
    traffic = device_traffic(problem, placement)
    exchanges = _exchanges(StepCost(problem.priced, simulator), times, traffic, simulator.source)
    columns = traffic[:, Collective.POOLED_EMBEDDINGS]
    if not columns.any():
        return device_costs(problem, times, traffic, exchanges, host_ms=host_ms)
    exchange = encoded_exchange(request).of_mean(float(columns.mean()))
    times_ms = exchange.times_ms(columns.max(), simulator) + added_calls_ms(problem.priced, simulator)
    forward_ms, backward_ms = times_ms.tolist()
    exact = {**exchanges.directions_ms, Collective.POOLED_EMBEDDINGS: (forward_ms, backward_ms)}
    pooled = problem.pooled_columns(placement.kinds, placement.devices, problem.num_devices)
    exact_exchanges = replace(exchanges, directions_ms=exact)
    return device_costs(problem, times, traffic, exact_exchanges, host_ms=host_ms, pooled_columns=pooled)


def _exchanges(step_cost: StepCost, compute_ms: FloatArray, traffic: FloatArray, source: str) -> Exchanges:
    peaks = np.concatenate((step_cost.passes(compute_ms), traffic), axis=1).max(axis=0)
    highest = traffic.max(axis=0)
    inputs = {Collective.INDICES: (float(step_cost.input_ms(peaks)), 0.0)} if highest[Collective.INDICES] > 0 else {}
    return Exchanges(
        directions_ms={**inputs, **step_cost.directions_ms(highest)},
        dense_update_ms=float(step_cost.dense_update_ms(highest)),
        source=source,
    )


def device_traffic(problem: Problem, placement: Placement) -> FloatArray:
    """Return [devices, collectives] the traffic of each device."""
    return problem.traffic(placement.kinds, placement.devices, problem.num_devices)


def device_costs(
    problem: Problem,
    compute_ms: FloatArray,
    traffic: FloatArray,
    exchanges: Exchanges,
    *,
    host_ms: FloatArray | None = None,
    pooled_columns: FloatArray | None = None,
) -> PlanCost:
    """Return the cost of a step from [devices, 2] compute times, [devices, collectives] traffic and exchanges.

    ``host_ms`` [devices, 2] is the part of the compute times that host memory takes. None: nothing. ``pooled_columns``
    [devices] are the columns of all vectors, also of those that do not travel. None: all travel.

    The forward collectives end when the last device has sent: a device that finishes its forward compute early
    waits (start skew). The backward collectives start on all devices at once, behind the dense part.
    """
    host_ms = np.zeros_like(compute_ms) if host_ms is None else host_ms
    pooled_columns = traffic[:, Collective.POOLED_EMBEDDINGS] if pooled_columns is None else pooled_columns
    passes = problem.step_cost.passes(compute_ms)
    wait = (passes.max(axis=0) - passes)[:, FORWARD]
    forward_ms, backward_ms = (exchanges.output_ms(direction) for direction in (0, 1))
    request = problem.request
    expansion_ms, added_ms = problem.step_cost.expansion_ms, problem.step_cost.added_compute_ms
    column_bytes = request.global_batch_size * BYTES_PER_ELEMENT[request.memory.output_data_type]

    def collective(kind: Collective, own_traffic: float) -> CollectiveCost:
        name, family = KINDS[kind]
        unit_bytes = 1 if kind in {Collective.INDICES, Collective.GRADIENTS} else column_bytes
        forward, backward = exchanges.directions_ms[kind]
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

    used = [kind for kind in KINDS if kind in exchanges.directions_ms]
    devices = tuple(
        DeviceCost(
            forward_compute_ms=float(forward),
            backward_compute_ms=float(backward),
            wait_ms=float(wait[device]),
            input_communication_ms=exchanges.input_ms,
            forward_communication_ms=forward_ms,
            backward_communication_ms=backward_ms,
            dense_update_ms=exchanges.dense_update_ms,
            host_link_ms=float(host_ms[device].sum()),
            expansion_ms=expansion_ms or None,
            collectives=tuple(collective(kind, float(traffic[device, kind])) for kind in used),
            embedding_dim_sum=round(pooled_columns[device]),
        )
        for device, (forward, backward) in enumerate((np.maximum(compute_ms - host_ms, 0.0) + added_ms).tolist())
    )
    total = float(passes.max(axis=0).sum()) + exchanges.input_ms + forward_ms + backward_ms + exchanges.dense_update_ms
    total += problem.step_cost.fixed_ms
    return PlanCost(total_ms=total, source=exchanges.source, devices=devices)

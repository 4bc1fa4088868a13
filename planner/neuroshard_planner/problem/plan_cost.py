"""What a placement costs, device by device, under a cost model or under the device simulator."""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.plan import DeviceCost, PlanCost
from neuroshard_costs.exchanges import Exchange, pooled_exchange
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.communication import Direction, Network
from neuroshard_costs.simulator.device import DeviceSimulator

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import FORWARD, Collective, StepCost


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchanges:
    """Milliseconds that the exchanges of a step add to it, and what computed them."""

    input_ms: float
    forward_ms: float
    backward_ms: float
    source: str


def predicted_cost(problem: Problem, placement: Placement, source: str) -> PlanCost:
    """Return the cost that the problem's cost model predicts."""
    traffic = device_traffic(problem, placement)
    times = problem.compute_ms(problem.device_sums(placement.kinds, placement.devices)).astype(np.float64)
    forward_ms, backward_ms = problem.step_cost.directions_ms(traffic.max(axis=0))
    input_ms = _input_ms(problem.step_cost, times, traffic)
    exchanges = Exchanges(input_ms=input_ms, forward_ms=forward_ms, backward_ms=backward_ms, source=source)
    return device_costs(problem, times, traffic, exchanges)


def simulated_cost(problem: Problem, placement: Placement) -> PlanCost:
    """Return the cost that the simulator of the request's device gives, without noise; labelled ``simulated:``.

    Each device makes a fused call per data type; the all-to-alls run over the request's topology.
    """
    request = problem.request
    simulator = DeviceSimulator(request.topology.device)
    shards, position = problem.shards_of(placement.kinds)
    times = simulator.compute_ms(shards, placement.devices[position], problem.num_devices, pipeline=request.pipeline)
    traffic = device_traffic(problem, placement)
    simulated = SimulatedTransfers(simulator)
    step_cost = StepCost(request, simulated)
    columns = traffic[:, [Collective.POOLED_EMBEDDINGS]].max(axis=0)
    ((forward_ms, backward_ms),) = simulated.transfer_ms(columns, pooled_exchange(request)).tolist()
    exchanges = Exchanges(
        input_ms=_input_ms(step_cost, times, traffic),
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        source=simulator.source,
    )
    return device_costs(problem, times, traffic, exchanges)


@dataclass(frozen=True, slots=True)
class SimulatedTransfers:
    """All-to-all times of the simulator, in the place of a cost model's."""

    simulator: DeviceSimulator

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds (see TransferModel)."""
        directions: tuple[Direction, Direction] = ("forward", "backward")
        times = [
            self.simulator.communication_ms(
                Network.of(exchange.topology),
                max_dim_sum=max_dim_sums,
                mean_dim_sum=exchange.mean_dim_sum,
                batch_size_per_device=exchange.batch_size_per_device,
                bytes_per_element=exchange.bytes_per_element,
                direction=direction,
            )
            for direction in directions
        ]
        return np.stack(np.broadcast_arrays(*times, max_dim_sums)[:2], axis=-1)


def _input_ms(step_cost: StepCost, compute_ms: FloatArray, traffic: FloatArray) -> float:
    peaks = np.concatenate((step_cost.passes(compute_ms), traffic), axis=1).max(axis=0)
    return float(step_cost.input_ms(peaks))


def device_traffic(problem: Problem, placement: Placement) -> FloatArray:
    """Return [devices, collectives] the traffic of each device."""
    return problem.traffic(placement.kinds, placement.devices, problem.num_devices)


def device_costs(problem: Problem, compute_ms: FloatArray, traffic: FloatArray, exchanges: Exchanges) -> PlanCost:
    """Return the cost of a step from [devices, 2] compute times, [devices, collectives] traffic and exchanges.

    The forward all-to-all ends when the last device has sent: a device that finishes its forward compute early
    waits (start skew). The backward all-to-all starts on all devices at once, behind the dense part.
    """
    passes = problem.step_cost.passes(compute_ms)
    wait = (passes.max(axis=0) - passes)[:, FORWARD]
    devices = tuple(
        DeviceCost(
            forward_compute_ms=float(forward),
            backward_compute_ms=float(backward),
            wait_ms=float(wait[device]),
            input_communication_ms=exchanges.input_ms,
            forward_communication_ms=exchanges.forward_ms,
            backward_communication_ms=exchanges.backward_ms,
            embedding_dim_sum=round(traffic[device, Collective.POOLED_EMBEDDINGS]),
        )
        for device, (forward, backward) in enumerate(compute_ms.tolist())
    )
    total = float(passes.max(axis=0).sum()) + exchanges.input_ms + exchanges.forward_ms + exchanges.backward_ms
    return PlanCost(total_ms=total, source=exchanges.source, devices=devices)

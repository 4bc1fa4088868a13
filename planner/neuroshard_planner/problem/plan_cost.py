"""What a placement costs, device by device, under a cost model or under the device simulator."""

import numpy as np
from neuroshard_api.plan import DeviceCost, PlanCost
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray
from neuroshard_costs.simulator.communication import Direction, Network
from neuroshard_costs.simulator.device import DeviceSimulator

from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.step_cost import Collective


def predicted_cost(problem: Problem, placement: Placement, source: str) -> PlanCost:
    """Return the cost that the problem's cost model predicts."""
    traffic = device_traffic(problem, placement)
    times = problem.compute_ms(problem.device_sums(placement.kinds, placement.devices)).astype(np.float64)
    return step_cost(times, traffic, problem.step_cost.directions_ms(traffic.max(axis=0)), source)


def simulated_cost(problem: Problem, placement: Placement) -> PlanCost:
    """Return the cost that the simulator of the request's device gives, without noise; labelled ``simulated:``.

    Each device's shards are one fused set; the all-to-alls run over the request's topology.
    """
    request = problem.request
    simulator = DeviceSimulator(request.topology.device)
    shards, position = problem.shards_of(placement.kinds)
    times = simulator.compute_ms(shards, placement.devices[position], problem.num_devices)
    traffic = device_traffic(problem, placement)
    columns = traffic[:, Collective.POOLED_EMBEDDINGS]
    network = Network.of(request.topology)

    def transfer_ms(direction: Direction) -> float:
        return float(
            simulator.communication_ms(
                network,
                max_dim_sum=float(columns.max()),
                mean_dim_sum=float(columns.mean()),
                batch_size_per_device=request.batch_size_per_device,
                bytes_per_element=BYTES_PER_ELEMENT[request.memory.output_data_type],
                direction=direction,
            )
        )

    return step_cost(times, traffic, (transfer_ms("forward"), transfer_ms("backward")), simulator.source)


def device_traffic(problem: Problem, placement: Placement) -> FloatArray:
    """Return [devices, collectives] the traffic of each device."""
    return problem.traffic(placement.kinds, placement.devices, problem.num_devices)


def step_cost(compute_ms: FloatArray, traffic: FloatArray, transfer_ms: tuple[float, float], source: str) -> PlanCost:
    """Return the cost of a step from [devices, 2] compute times, traffic [devices, collectives] and all-to-all times.

    The forward all-to-all ends when the last device has sent: a device that finishes its forward compute early
    waits (start skew). The backward all-to-all starts on all devices at once, behind the dense part.
    """
    forward, backward = compute_ms[:, 0], compute_ms[:, 1]
    wait = forward.max() - forward
    devices = tuple(
        DeviceCost(
            forward_compute_ms=float(forward[device]),
            backward_compute_ms=float(backward[device]),
            wait_ms=float(wait[device]),
            forward_communication_ms=transfer_ms[0],
            backward_communication_ms=transfer_ms[1],
            embedding_dim_sum=round(traffic[device, Collective.POOLED_EMBEDDINGS]),
        )
        for device in range(len(traffic))
    )
    total = float(forward.max() + backward.max()) + sum(transfer_ms)
    return PlanCost(total_ms=total, source=source, devices=devices)

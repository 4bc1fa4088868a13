"""Records of simulated all-to-alls, where there are no devices to exchange anything."""

import numpy as np
from neuroshard_api.documents.records import CommunicationSample, ProfileRecord
from neuroshard_api.documents.topology import DeviceType, Topology
from neuroshard_costs.simulator.communication import NetworkColumns, with_start_skew
from neuroshard_costs.simulator.device import DeviceSimulator

from neuroshard_profiler.benches.comm_sampling import CommunicationSpace, communication_sample
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.records import RecordsFile

_SIMULATED_NOISE = 0.02


def simulate_communication(
    device: DeviceType, space: CommunicationSpace, file: RecordsFile, *, budget: Budget, seed: int = 0
) -> None:
    """Append records of simulated all-to-alls until the budget is spent."""
    while not budget.is_spent(len(file.records)):
        index = len(file.records)
        sample = communication_sample(space, seed=seed, index=index)
        simulator = DeviceSimulator(device, noise=_SIMULATED_NOISE, seed=index)
        transfer_ms = simulator.communication_ms(
            NetworkColumns.of(_topology(device, sample)),
            max_dim_sum=float(max(sample.embedding_dim_sums)),
            mean_dim_sum=float(np.mean(sample.embedding_dim_sums)),
            batch_size_per_device=float(sample.batch_size_per_device),
            bytes_per_element=float(sample.bytes_per_element),
            direction=sample.direction,
        )
        starts = np.array(sample.start_offsets_ms or [0.0] * len(sample.embedding_dim_sums))
        device_ms = with_start_skew(starts, float(transfer_ms))
        file.append(
            ProfileRecord(
                source=f"simulated:{device.product}",
                communication=sample,
                device_ms=tuple(float(each) for each in device_ms),
                elapsed_seconds=budget.elapsed_seconds,
            )
        )


def _topology(device: DeviceType, sample: CommunicationSample) -> Topology:
    intra_node, inter_node = sample.links
    return Topology(
        num_nodes=sample.num_nodes,
        devices_per_node=sample.devices_per_node,
        device=device,
        intra_node=intra_node,
        inter_node=inter_node,
    )

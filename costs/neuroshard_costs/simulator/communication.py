"""Time of one all-to-all over a two-level network, with the copies around it. Base units: seconds.

Formulas: docs/concepts/device-simulator-formulas.md; numbers: constants.py.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from neuroshard_api.documents.topology import DeviceType, Link, Topology

from neuroshard_costs.arithmetic import power_norm
from neuroshard_costs.levels import exchange_link
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator import constants as c

Numbers = FloatArray | float
"""One number for all samples, or one for each."""

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkColumns:
    """Networks of n samples as columns of numbers; every field broadcasts against the others."""

    num_nodes: FloatArray
    devices_per_node: FloatArray
    intra_bandwidth_bytes_per_second: FloatArray
    intra_latency_seconds: FloatArray
    inter_bandwidth_bytes_per_second: FloatArray
    inter_latency_seconds: FloatArray

    @classmethod
    def of(cls, topology: Topology, *, upper: Link | None = None) -> Self:
        """Return the network of one topology, whose domains are its nodes.

        Args:
            topology: of two or three levels.
            upper: the one link between domains. None: that of an all-to-all (see levels.exchange_link).
        """
        inter = upper or exchange_link(topology)
        return cls(
            num_nodes=np.array(float(topology.num_domains)),
            devices_per_node=np.array(float(topology.devices_per_domain)),
            intra_bandwidth_bytes_per_second=np.array(float(topology.intra_node.bandwidth_bytes_per_second)),
            intra_latency_seconds=np.array(float(topology.intra_node.latency_seconds)),
            inter_bandwidth_bytes_per_second=np.array(float(inter.bandwidth_bytes_per_second)),
            inter_latency_seconds=np.array(float(inter.latency_seconds)),
        )


def all_to_all_seconds(
    device: DeviceType,
    network: NetworkColumns,
    *,
    max_dim_sum: Numbers,
    mean_dim_sum: Numbers,
    batch_size_per_device: Numbers,
    bytes_per_element: Numbers,
    direction: Direction,
) -> FloatArray:
    """Return the seconds from the last device's start to the end, copies included; 0 on a single device.

    Forward, a device sends its dim sum for every sample of each peer and receives the peers' dim sums for its own
    samples; backward the other way round. Links work both ways at once, so that the larger of sent and received
    counts: that of the device with the largest dim sum.
    """
    num_devices = network.num_nodes * network.devices_per_node
    intra_peers = network.devices_per_node - 1
    inter_peers = num_devices - network.devices_per_node
    column_bytes = np.asarray(batch_size_per_device, dtype=np.float64) * bytes_per_element
    intra = level_seconds(
        max_dim_sum * column_bytes,
        intra_peers,
        network.intra_bandwidth_bytes_per_second * c.INTRA_NODE_EFFICIENCY,
        network.intra_latency_seconds,
    )
    inter = level_seconds(
        max_dim_sum * column_bytes,
        inter_peers,
        network.inter_bandwidth_bytes_per_second * c.INTER_NODE_EFFICIENCY,
        network.inter_latency_seconds,
    )
    transfer = power_norm(np.stack(np.broadcast_arrays(intra, inter)), c.LEVEL_NORM)

    copy = copy_seconds(
        device,
        max_dim_sum=max_dim_sum,
        mean_dim_sum=mean_dim_sum,
        num_devices=num_devices,
        batch_size_per_device=batch_size_per_device,
        bytes_per_element=bytes_per_element,
        direction=direction,
    )
    seconds: FloatArray = np.where(num_devices > 1, c.COLLECTIVE_LAUNCH_SECONDS + transfer + copy, 0.0)
    return seconds


def copy_seconds(
    device: DeviceType,
    *,
    max_dim_sum: Numbers,
    mean_dim_sum: Numbers,
    num_devices: Numbers,
    batch_size_per_device: Numbers,
    bytes_per_element: Numbers,
    direction: Direction,
) -> FloatArray:
    """Return the seconds of the copies around an all-to-all, of values with this width."""
    copied_dims = c.COPIES * np.asarray(mean_dim_sum, dtype=np.float64)
    if direction == "backward":
        copied_dims = copied_dims + max_dim_sum  # TorchRec divides the received gradients by the number of devices
    efficiency = np.where(np.asarray(bytes_per_element) >= 4, c.COPY_EFFICIENCY, c.NARROW_COPY_EFFICIENCY)  # noqa: PLR2004
    column_bytes = np.asarray(batch_size_per_device, dtype=np.float64) * bytes_per_element
    copied_bytes = 2 * copied_dims * num_devices * column_bytes
    seconds: FloatArray = copied_bytes / (device.memory_bandwidth_bytes_per_second * efficiency)
    return seconds


def with_start_skew(start_ms: FloatArray, transfer_ms: Numbers) -> FloatArray:
    """Return [..., devices]: each device's time in a collective that begins when the last device has started.

    Args:
        start_ms: [..., devices] when each device enters the collective.
        transfer_ms: [...] time from the last start to the end.
    """
    device_ms: FloatArray = start_ms.max(axis=-1, keepdims=True) - start_ms + np.asarray(transfer_ms)[..., None]
    return device_ms


def level_seconds(busy_bytes: Numbers, peers: FloatArray, rate: FloatArray, latency: FloatArray) -> FloatArray:
    """Return the time for one level; the latency grows linearly with the peers, as NCCL's sends and receives do."""
    seconds: FloatArray = peers * busy_bytes / rate + latency * np.where(peers > 0, 1 + peers / c.PEERS_AT_ONCE, 0.0)
    return seconds

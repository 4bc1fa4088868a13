"""Time of the collectives in which devices add up what each has a part of. Base units: seconds.

===========  ========================================  ===============================================================
family       forward                                   backward
===========  ========================================  ===============================================================
rows         reduce-scatter of the partial sums        all-gather of their gradients, copied into one buffer
node_rows    the same inside the node, then an         all-to-all, then all-gather inside the node, copied
             all-to-all among the devices of one
             place in their nodes
replicated   nothing                                   all-reduce of the gradients of whole tables
===========  ========================================  ===============================================================

Formulas: docs/concepts/device-simulator-formulas.md; numbers: constants.py.
"""

from dataclasses import replace

import numpy as np
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kinds import Family

from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.communication import Direction, NetworkColumns, Numbers, level_seconds
from neuroshard_costs.simulator.nccl import all_reduce_seconds, scatter_seconds

HOPPER_PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H200")
BLACKWELL_PRODUCTS = ("NVIDIA-B200", "NVIDIA-GB200")
"""Products whose usual node adds up in its switches (NVLink SHARP), as that of Hopper's does."""


def reduction_seconds(
    device: DeviceType, network: NetworkColumns, *, num_bytes: Numbers, family: Family, direction: Direction
) -> FloatArray:
    """Return the seconds of a family's collectives in one direction, copies included; 0 on a single device.

    All arguments broadcast.

    Args:
        device: copies, and may add up in the switches of its node.
        network: its links work both ways at once.
        num_bytes: partial sums of all samples on a device (rows), on a device of the fullest node (node_rows), or
            gradients of all replicated tables.
        family: not columns, whose all-to-alls are communication.all_to_all_seconds.
        direction: pooled embeddings forward, gradients backward.
    """
    num_bytes = np.asarray(num_bytes, dtype=np.float64)
    num_devices = network.num_nodes * network.devices_per_node
    match family:
        case Family.ROWS:
            transfer = c.COLLECTIVE_LAUNCH_SECONDS + scatter_seconds(network, num_bytes)
        case Family.NODE_ROWS:
            transfer = 2 * c.COLLECTIVE_LAUNCH_SECONDS + _node_stages(network, num_bytes)
        case Family.REPLICATED:
            added = all_reduce_seconds(network, num_bytes, switch_efficiency=_switch_efficiency(device))
            transfer = (c.COLLECTIVE_LAUNCH_SECONDS + added) * (direction == "backward")
        case Family.COLUMNS:
            raise ValueError("family: is columns, which adds up nothing; hint: use all_to_all_seconds")
    if family is not Family.REPLICATED and direction == "backward":
        transfer = transfer + c.GATHERED_COPY_PASSES * num_bytes / device.memory_bandwidth_bytes_per_second
    seconds: FloatArray = np.where(num_devices > 1, transfer, 0.0)
    return seconds


def _switch_efficiency(device: DeviceType) -> float | None:
    """Return the share of a link that the switches of a device's usual node reach. None: they do not add up."""
    if device.product in BLACKWELL_PRODUCTS:
        return c.SHARP_EFFICIENCY * c.BLACKWELL_SHARP_SHARE
    return float(c.SHARP_EFFICIENCY) if device.product in HOPPER_PRODUCTS else None


def dense_update_seconds(device: DeviceType, gradient_bytes: Numbers) -> FloatArray:
    """Return the seconds in which gradients of all rows are cleared, and the optimizer goes through all rows."""
    passes: FloatArray = np.asarray(gradient_bytes, dtype=np.float64) * c.DENSE_UPDATE_PASSES
    return passes / device.memory_bandwidth_bytes_per_second


def _node_stages(network: NetworkColumns, num_bytes: FloatArray) -> FloatArray:
    """Return the seconds of both stages: around the node, and to the same place in the other nodes."""
    per_node, nodes = network.devices_per_node, network.num_nodes
    around = np.where(per_node > 1, scatter_seconds(replace(network, num_nodes=np.ones(())), num_bytes), 0.0)
    across = level_seconds(
        num_bytes / (nodes * per_node),
        nodes - 1,
        network.inter_bandwidth_bytes_per_second * c.INTER_NODE_EFFICIENCY,
        network.inter_latency_seconds,
    )
    seconds: FloatArray = around + across
    return seconds

"""Copies around an all-to-all whose values are encoded. Base units: seconds.

TorchRec copies pooled embeddings into the order of features after they are decoded, and gradients before they are
encoded: these copies keep the width of FP32, while a cost model of all-to-alls at the wire's width counts them at that
width. What they take more is counted here.
"""

import numpy as np
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.codec_passes import DECODED_BYTES
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator.communication import Direction, Numbers, copy_seconds


def wider_copy_seconds(
    device: DeviceType,
    *,
    max_dim_sum: Numbers,
    mean_dim_sum: Numbers,
    num_devices: Numbers,
    batch_size_per_device: Numbers,
    bytes_per_element: Numbers,
    direction: Direction,
) -> FloatArray:
    """Return the seconds that copies take in FP32 more than at the wire's width.

    All arguments broadcast.

    Args:
        device: copies.
        max_dim_sum: columns on the device that has most.
        mean_dim_sum: columns per device on average.
        num_devices: that exchange.
        batch_size_per_device: samples of one device.
        bytes_per_element: on the wire.
        direction: pooled embeddings forward, gradients backward.
    """
    wide, narrow = (
        copy_seconds(
            device,
            max_dim_sum=max_dim_sum,
            mean_dim_sum=mean_dim_sum,
            num_devices=num_devices,
            batch_size_per_device=batch_size_per_device,
            bytes_per_element=width,
            direction=direction,
        )
        for width in (DECODED_BYTES, bytes_per_element)
    )
    seconds: FloatArray = np.maximum(wide - narrow, 0.0)
    return seconds

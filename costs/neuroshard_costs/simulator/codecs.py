"""Time of the codecs around an all-to-all. Base units: seconds.

    forward    the fullest device encodes its columns of all samples | all devices decode all columns of their samples
    backward   all devices encode all columns of their samples | the fullest device decodes its columns of all samples

A pass reads one type and writes the other. TorchRec copies pooled embeddings into the order of features after they are
decoded, and gradients before they are encoded: these copies keep the width of FP32, while a cost model of all-to-alls
at the wire's width counts them at that width. What they take more is added here.
"""

import numpy as np
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator import constants as c
from neuroshard_costs.simulator.communication import Direction, Numbers, copy_seconds

DECODED_BYTES = WIRE_FORMATS[WireType.FP32].bytes_per_value
"""Of a value before it is encoded: codecs take FP32."""


def codec_seconds(
    device: DeviceType,
    *,
    max_dim_sum: Numbers,
    mean_dim_sum: Numbers,
    num_devices: Numbers,
    batch_size_per_device: Numbers,
    bytes_per_element: Numbers,
    direction: Direction,
) -> FloatArray:
    """Return the seconds that a codec adds to an all-to-all at the wire's width, copies included.

    All arguments broadcast.

    Args:
        device: encodes and decodes.
        max_dim_sum: columns on the device that has most.
        mean_dim_sum: columns per device on average.
        num_devices: that exchange.
        batch_size_per_device: samples of one device.
        bytes_per_element: on the wire.
        direction: pooled embeddings forward, gradients backward.
    """
    num_samples = np.asarray(batch_size_per_device, dtype=np.float64) * num_devices
    num_values = num_samples * (np.asarray(max_dim_sum) + mean_dim_sum)
    bandwidth = device.memory_bandwidth_bytes_per_second
    passes = num_values * (DECODED_BYTES + np.asarray(bytes_per_element)) / (bandwidth * c.CODEC_EFFICIENCY)
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
    seconds: FloatArray = 2 * c.CODEC_LAUNCH_SECONDS + passes + np.maximum(wide - narrow, 0.0)
    return seconds

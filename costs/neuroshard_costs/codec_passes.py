"""What codecs take to encode and decode the values of an exchange. Measures nothing.

Where they were measured, passes and values count each with their own time. Elsewhere a pass is memory traffic, which
reads one type and writes the other, and its launch.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.bundle import CodecTimes
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator import constants as c

DECODED_BYTES = WIRE_FORMATS[WireType.FP32].bytes_per_value
"""Of a value before it is encoded: codecs take FP32."""
MS_PER_SECOND = 1e3
_EFFICIENCY = {
    WireType.FP16: c.SIXTEEN_BIT_CODEC_EFFICIENCY,
    WireType.BF16: c.SIXTEEN_BIT_CODEC_EFFICIENCY,
    WireType.INT8: c.INT8_CODEC_EFFICIENCY,
    WireType.FP8: c.FP8_CODEC_EFFICIENCY,
    WireType.MX4: c.MX4_CODEC_EFFICIENCY,
    **{kind: c.SPARSE_CODEC_EFFICIENCY for kind in WireType if kind.is_sparse},
}
"""Of encoding and of decoding, as a share of the memory's peak."""


def codec_ms(
    kind: WireType, encoded: FloatArray, decoded: FloatArray, *, device: DeviceType, measured: Sequence[CodecTimes]
) -> FloatArray:
    """Return the milliseconds [...] of both passes around an exchange.

    Args:
        kind: on the wire.
        encoded: [...] values on the device that encodes most.
        decoded: [...] values on the device that decodes most.
        device: whose memory they pass through.
        measured: times on it.
    """
    for times in measured:
        if times.type is kind:
            taken: FloatArray = sum(times.pass_ms) + encoded * times.value_ms[0] + decoded * times.value_ms[1]
            return taken
    encoding, decoding = _EFFICIENCY[kind]
    moved = (encoded / encoding + decoded / decoding) * (DECODED_BYTES + WIRE_FORMATS[kind].bytes_per_value)
    return _passes_ms(moved, device)


def scaling_ms(kind: WireType, encoded: FloatArray, decoded: FloatArray, *, device: DeviceType) -> FloatArray:
    """Return the milliseconds [...] in which gradients are multiplied before they are encoded, and divided after.

    The trainer does so in FP16 alone, whose smallest values are above those of gradients. Arguments as of codec_ms.
    """
    if kind is not WireType.FP16:
        return np.zeros(np.shape(encoded))
    return _passes_ms((encoded + decoded) * 2 * DECODED_BYTES / c.ELEMENTWISE_EFFICIENCY, device)


def _passes_ms(num_bytes: FloatArray, device: DeviceType) -> FloatArray:
    """Return the milliseconds of two passes that take as long as this many bytes at the memory's peak."""
    return MS_PER_SECOND * (2 * c.CODEC_LAUNCH_SECONDS + num_bytes / device.memory_bandwidth_bytes_per_second)

"""What codecs take to encode and decode the values of an exchange. Measures nothing.

Where they were measured, passes and values count each with their own time. Elsewhere a pass is memory traffic, which
reads one type and writes the other, and its launch.
"""

from collections.abc import Sequence

from neuroshard_api.documents.bundle import CodecTimes
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.shards import FloatArray
from neuroshard_costs.simulator import constants as c

DECODED_BYTES = WIRE_FORMATS[WireType.FP32].bytes_per_value
"""Of a value before it is encoded: codecs take FP32."""
MS_PER_SECOND = 1e3


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
    bandwidth = device.memory_bandwidth_bytes_per_second * c.CODEC_EFFICIENCY
    passed_bytes = (encoded + decoded) * (DECODED_BYTES + WIRE_FORMATS[kind].bytes_per_value)
    return MS_PER_SECOND * (2 * c.CODEC_LAUNCH_SECONDS + passed_bytes / bandwidth)

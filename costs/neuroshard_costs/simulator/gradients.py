"""Passes over gradients before and after their collectives. Base units: seconds.

type        bytes read and written for each parameter
FP16, BF16  12: 4 read, 2 written; 2 read, 4 written
Threshold   64: the carried part added (12), magnitudes (8), comparison and search (9), copies (20), counting (5), sums
            and mean (10)
"""

import math
from collections.abc import Mapping

from neuroshard_api.documents.gradient_exchange import GradientType
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.simulator import constants as c

PASSED_BYTES: Mapping[GradientType, int] = {
    GradientType.FP32: 0,
    GradientType.FP16: 12,
    GradientType.BF16: 12,
    GradientType.THRESHOLD: 64,
}
"""Of a parameter, counted in the hooks; read at the efficiency that is assumed for passes by elements."""
LAUNCHES: Mapping[GradientType, int] = {
    GradientType.FP32: 0,
    GradientType.FP16: 2,
    GradientType.BF16: 2,
    GradientType.THRESHOLD: 16,
}
"""Kernels of a bucket, counted likewise."""
BUCKET_BYTES = 25 * 2**20
"""Of DistributedDataParallel, as TorchRec sets it."""


def gradient_codec_seconds(device: DeviceType, num_parameters: int, kind: GradientType) -> float:
    """Return the seconds of a codec's passes over FP32 gradients of this number of parameters; nothing hides them."""
    passes = num_parameters * PASSED_BYTES[kind] / (device.memory_bandwidth_bytes_per_second * c.ELEMENTWISE_EFFICIENCY)
    num_buckets = math.ceil(4 * num_parameters / BUCKET_BYTES)
    return passes + num_buckets * LAUNCHES[kind] * c.CODEC_LAUNCH_SECONDS

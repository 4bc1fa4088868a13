"""What copying pooled embeddings to the samples that repeat a list takes, forward and backward. Measures nothing.

Where it was measured, features, rows, and bytes count each with their own time: a copy each, and kernels of a CPU sum
gradients up row by row, of all features of a group together. Elsewhere it is memory traffic.
"""

from neuroshard_api.documents.bundle import ExpansionCost
from neuroshard_api.documents.topology import DeviceType

EXPANSION_PASSES = 5
"""Times that the pooled embeddings of a group pass through memory in a step. Forward: read and written by index_select.
Backward: zeros are written, gradients read, and their sums written."""
MS_PER_SECOND = 1e3


def expansion_ms(
    num_features: int, num_rows: float, num_bytes: float, *, device: DeviceType, measured: ExpansionCost | None
) -> float:
    """Return the milliseconds of both directions.

    Args:
        num_features: of groups.
        num_rows: samples of a device times groups.
        num_bytes: of the features of these rows.
        device: whose memory they pass through.
        measured: times on it. None: memory traffic alone counts.
    """
    if measured is not None:
        feature_ms, row_ms, byte_ms = map(sum, (measured.feature_ms, measured.group_row_ms, measured.byte_ms))
        return num_features * feature_ms + num_rows * row_ms + num_bytes * byte_ms
    return EXPANSION_PASSES * num_bytes / device.memory_bandwidth_bytes_per_second * MS_PER_SECOND

"""A cost model of linear times, under which an exact solver prices plans as the search does."""

import numpy as np
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.request import Pipeline
from neuroshard_costs.exchanges import Exchange, Reduction
from neuroshard_costs.host import HostTimes, HostWork
from neuroshard_costs.shards import FloatArray, ShardArrays
from support.builders import topology
from support.planner.exact_costs import ExactCosts


class LinearCosts:
    """Times proportional to the columns looked up, plus a constant for every shard; exact arithmetic is easy."""

    manifest = ExactCosts(topology(1).device).manifest.model_copy(update={"source": "measured:linear"})
    """Of no collectives but those of tables by columns."""

    forward_ms_per_element = 2e-7
    backward_ms_per_element = 5e-7
    shard_ms = 0.01
    transfer_ms_per_element = 1e-6

    def represent(self, shards: ShardArrays) -> FloatArray:
        """Return [n, 2] forward and backward milliseconds."""
        elements = shards.lookups * shards.num_columns
        forward = self.shard_ms + self.forward_ms_per_element * elements
        backward = self.shard_ms + self.backward_ms_per_element * (elements + shards.unique_rows)
        return np.stack([forward, backward], axis=1)

    def compute_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:  # noqa: ARG002
        """Return the sums."""
        return sums

    def lanes(self, representations: FloatArray) -> FloatArray:
        """Return 0: demands add up, whatever else a device holds."""
        return np.zeros(len(representations))

    def least_demands(self, representations: FloatArray, *, lanes: float = 0.0) -> FloatArray:  # noqa: ARG002 - a bundle's signature
        """Return the demands themselves."""
        return representations

    def least_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:  # noqa: ARG002
        """Return the sums."""
        return sums

    @property
    def is_convex(self) -> bool:
        """The times are the sums."""
        return True

    def tangent_ms(self, sums: FloatArray, *, num_calls: int) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002
        """Return the sums, of slope one."""
        return sums, np.eye(2)

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return equal times in both directions, proportional to the largest dimension sum."""
        num_samples = exchange.topology.num_devices * exchange.batch_size_per_device
        column_ms = self.transfer_ms_per_element * num_samples * exchange.bytes_per_element / 4
        return np.stack([column_ms * max_dim_sums] * 2, axis=-1)

    def reduction_ms(self, num_bytes: FloatArray, reduction: Reduction) -> FloatArray:  # noqa: ARG002
        """Return equal times in both directions, proportional to the bytes."""
        return np.stack([self.transfer_ms_per_element * num_bytes / 4] * 2, axis=-1)

    waits_for_shards = False

    def dense_update_ms(self, gradient_bytes: FloatArray) -> FloatArray:
        """Return times proportional to the bytes."""
        return self.transfer_ms_per_element * gradient_bytes / 4

    @property
    def added_collection(self) -> None:
        """None: further collections were not measured."""

    def expansion_ms(self, num_features: int, num_rows: float, num_bytes: float) -> float:  # noqa: ARG002
        """Return a time proportional to the bytes."""
        return self.transfer_ms_per_element * num_bytes / 4

    def codec_ms(self, kind: WireType, encoded: FloatArray, decoded: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return a time proportional to the values."""
        return self.transfer_ms_per_element * (encoded + decoded)

    def matrices_ms(self, forward_flops: float, backward_flops: float) -> tuple[float, float]:
        """Return times proportional to the operations."""
        return self.transfer_ms_per_element * forward_flops, self.transfer_ms_per_element * backward_flops

    def dense_other_ms(self, passes: DensePasses) -> float:
        """Return a time proportional to the bytes."""
        return self.transfer_ms_per_element * (passes.forward.moved_bytes + passes.backward.moved_bytes) / 4

    def dense_traffic_ms(self, one: DensePass) -> float:
        """Return a time proportional to the bytes."""
        return self.transfer_ms_per_element * one.moved_bytes / 4

    def host_times(self, work: HostWork) -> HostTimes:  # noqa: ARG002
        """Return that the host needs nothing."""
        return HostTimes(tables_ms=0.0, dense_ms=None, launches=0, source="assumed:nothing")

"""The device simulator: a stand-in for a GPU where there is none. Its times are simulated, never measured.

An analytic model of FBGEMM's fused embedding kernels and of NCCL's all-to-all. Its formulas are in
docs/concepts/device-simulator-formulas.md; its numbers are in constants.py.
"""

import numpy as np
from neuroshard_api.documents.bundle import CollectionParts, Launch
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.kinds import Family

from neuroshard_costs.codec_passes import codec_ms
from neuroshard_costs.exchanges import Exchange, Reduction
from neuroshard_costs.expansion import expansion_ms
from neuroshard_costs.host import HostTimes, HostWork, host_times
from neuroshard_costs.levels import exchange_link, ring_link
from neuroshard_costs.shards import FloatArray, IndexArray, ShardArrays
from neuroshard_costs.simulator.communication import DIRECTIONS, Direction, NetworkColumns, Numbers, all_to_all_seconds
from neuroshard_costs.simulator.compute import set_seconds
from neuroshard_costs.simulator.dense import matrices_ms, other_ms, traffic_ms
from neuroshard_costs.simulator.reductions import dense_update_seconds, reduction_seconds

_MS_PER_SECOND = 1000.0


class DeviceSimulator:
    """One kind of device. Without noise equal inputs give equal times.

    Args:
        device: its data sheet decides all times.
        noise: standard deviation of the logarithm of each time, drawn again for each; 0.02 is about 2 %.
        seed: two simulators of equal seed draw equal noise for an equal sequence of calls.
    """

    def __init__(self, device: DeviceType, *, noise: float = 0.0, seed: int = 0) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(
                f"noise: must be a share between 0 and 1, found {noise}; 0.02 gives times within about 2 %"
            )
        self.device = device
        self.noise = noise
        self._random = np.random.default_rng(seed)

    @property
    def source(self) -> str:
        """The label that every number from this simulator carries."""
        return f"simulated:{self.device.name}"

    def compute_ms(
        self, shards: ShardArrays, set_index: IndexArray, num_sets: int, *, pipeline: Pipeline
    ) -> FloatArray:
        """Return [num_sets, 2]: forward and backward time of each set's fused calls; 0.0 for an empty set.

        A device makes one call per data type. The backward time includes the fused optimizer.

        Args:
            shards: of all sets, in any order.
            set_index: [n] the set that each shard belongs to.
            num_sets: sets; those that no shard belongs to are devices without tables.
            pipeline: without one the host's launch of each call counts.
        """
        seconds = set_seconds(self.device, shards, set_index, num_sets, pipeline=pipeline)
        return self._noisy(seconds) * _MS_PER_SECOND

    def communication_ms(
        self,
        network: NetworkColumns,
        *,
        max_dim_sum: Numbers,
        mean_dim_sum: Numbers,
        batch_size_per_device: Numbers,
        bytes_per_element: Numbers,
        direction: Direction,
    ) -> FloatArray:
        """Return [n] time of one all-to-all from the last device's start to its end.

        All arguments broadcast. communication.with_start_skew adds what earlier devices wait.

        Args:
            network: see NetworkColumns.of.
            max_dim_sum: columns on the device that has most.
            mean_dim_sum: columns per device on average.
            batch_size_per_device: samples of one device.
            bytes_per_element: of the pooled embeddings or their gradients.
            direction: pooled embeddings forward, gradients backward.
        """
        seconds = all_to_all_seconds(
            self.device,
            network,
            max_dim_sum=max_dim_sum,
            mean_dim_sum=mean_dim_sum,
            batch_size_per_device=batch_size_per_device,
            bytes_per_element=bytes_per_element,
            direction=direction,
        )
        return self._noisy(seconds) * _MS_PER_SECOND

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds (see TransferModel)."""
        times = [
            self.communication_ms(
                NetworkColumns.of(exchange.topology),
                max_dim_sum=max_dim_sums,
                mean_dim_sum=exchange.mean_dim_sum,
                batch_size_per_device=exchange.batch_size_per_device,
                bytes_per_element=exchange.bytes_per_element,
                direction=direction,
            )
            for direction in DIRECTIONS
        ]
        return np.stack(np.broadcast_arrays(*times, max_dim_sums)[:2], axis=-1)

    def reduction_ms(self, num_bytes: FloatArray, reduction: Reduction) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds (see TransferModel)."""
        is_staged = reduction.family is Family.NODE_ROWS  # a ring inside the domain, then an all-to-all
        upper = exchange_link(reduction.topology) if is_staged else ring_link(reduction.topology)
        network = NetworkColumns.of(reduction.topology, upper=upper)
        times = [
            reduction_seconds(self.device, network, num_bytes=num_bytes, family=reduction.family, direction=direction)
            for direction in DIRECTIONS
        ]
        return self._noisy(np.stack(times, axis=-1)) * _MS_PER_SECOND

    @property
    def waits_for_shards(self) -> bool:
        """False: compute hides a part of them (see TransferModel)."""
        return False

    def dense_update_ms(self, gradient_bytes: FloatArray) -> FloatArray:
        """Return [...] milliseconds (see TransferModel)."""
        return self._noisy(dense_update_seconds(self.device, gradient_bytes)) * _MS_PER_SECOND

    @property
    def added_collection(self) -> CollectionParts | None:
        """None: a further collection is not simulated (see TransferModel)."""
        return None

    def expansion_ms(self, num_features: int, num_rows: float, num_bytes: float) -> float:
        """Return milliseconds (see TransferModel)."""
        return expansion_ms(num_features, num_rows, num_bytes, device=self.device, measured=None)

    def codec_ms(self, kind: WireType, encoded: FloatArray, decoded: FloatArray) -> FloatArray:
        """Return milliseconds (see TransferModel)."""
        return codec_ms(kind, encoded, decoded, device=self.device, measured=())

    def matrices_ms(self, forward_flops: float, backward_flops: float) -> tuple[float, float]:
        """Return milliseconds (see TransferModel)."""
        return matrices_ms(forward_flops, backward_flops, device=self.device, measured=None)

    def dense_other_ms(self, passes: DensePasses) -> float:
        """Return milliseconds (see TransferModel)."""
        return other_ms(passes, device=self.device, measured=None)

    def dense_traffic_ms(self, one: DensePass) -> float:
        """Return milliseconds (see TransferModel)."""
        return traffic_ms(one, device=self.device)

    def host_times(self, work: HostWork) -> HostTimes:
        """Return milliseconds (see TransferModel)."""
        return host_times(work, device=self.device, launch=Launch())

    def _noisy(self, seconds: FloatArray) -> FloatArray:
        if self.noise == 0:
            return seconds
        return seconds * np.exp(self._random.normal(0.0, self.noise, size=seconds.shape))

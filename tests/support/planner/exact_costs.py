"""A cost model without learning error: its representation is the simulator's demands, its times the simulator's."""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.bundle import (
    BundleManifest,
    CodecTimes,
    CollectionParts,
    ErrorReport,
    MatrixTimes,
    Network,
)
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.request import Pipeline, PlanRequest
from neuroshard_api.documents.topology import DeviceType
from neuroshard_costs.bundle import NETWORK_FEATURES
from neuroshard_costs.codec_passes import codec_ms
from neuroshard_costs.exchanges import Exchange, Reduction
from neuroshard_costs.features import FEATURE_VERSION
from neuroshard_costs.host import HostTimes, HostWork
from neuroshard_costs.shards import NUM_CALLS, FloatArray, ShardArrays
from neuroshard_costs.simulator.compute import (
    DEVICE_SECONDS,
    HOST_SECONDS,
    NUM_DEMANDS,
    combined_seconds,
    demand_seconds,
    overlapped,
)
from neuroshard_costs.simulator.constants import SUB_WARP_COLUMNS
from neuroshard_costs.simulator.dense import matrices_ms
from neuroshard_costs.simulator.device import DeviceSimulator
from numpy.typing import NDArray

MS_PER_SECOND = 1000.0


@dataclass(frozen=True)
class ExactCosts:
    """Stands in for a bundle of a device; the search cannot tell the difference."""

    device: DeviceType
    added_collection: CollectionParts | None = None
    """Added by a further collection of tables."""
    codecs: tuple[CodecTimes, ...] = ()
    """Measured types."""
    matrices: MatrixTimes | None = None
    """Measured products."""
    waits_for_shards: bool = False
    """Whether no compute hides collectives of sharded units."""

    @property
    def manifest(self) -> BundleManifest:
        """What a bundle without error would say of itself."""
        no_error = ErrorReport(num_samples=1, mse_ms2=0.0, mape=0.0, kendall_tau=1.0)
        return BundleManifest(
            name="exact",
            source=f"simulated:{self.device.name}",
            device=self.device,
            feature_version=FEATURE_VERSION,
            networks=tuple(
                Network(name=name, features=features, hidden=(), validity={}, hold_out=no_error)
                for name, features in NETWORK_FEATURES.items()
            ),
            weights_sha256="0" * 64,
        )

    def represent(self, shards: ShardArrays) -> FloatArray:
        """Return [n, 160]: per call 7 resources' busy milliseconds, the shards, those above 32 and 64 columns."""
        demands = demand_seconds(self.device, shards) * MS_PER_SECOND
        above = shards.num_columns[:, None] > np.array(SUB_WARP_COLUMNS, dtype=np.float64)
        own = np.concatenate((demands, np.ones((len(shards), 1)), above), axis=1)
        is_call = np.arange(NUM_CALLS) == shards.call[:, None]
        per_call: FloatArray = is_call[:, :, None] * own[:, None, :]
        return per_call.reshape(len(shards), -1)

    def compute_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:
        """Return [..., 2] the simulator's forward and backward times; 0 without shards."""
        calls = sums.reshape(-1, NUM_DEMANDS + 3).astype(np.float64)
        occupied, above_32, above_64 = calls[:, NUM_DEMANDS:].T > 0
        share = np.where(above_64, 1.0, np.where(above_32, 0.5, 0.25))
        kernels = combined_seconds(calls[:, :NUM_DEMANDS] / MS_PER_SECOND, share) + DEVICE_SECONDS
        return self._step_ms((kernels * occupied[:, None]), occupied, sums, pipeline)

    def lanes(self, representations: FloatArray) -> FloatArray:
        """Return 0: shards of another call keep their lanes."""
        return np.zeros(len(representations))

    def least_demands(self, representations: FloatArray, *, lanes: float = 0.0) -> FloatArray:  # noqa: ARG002 - a bundle's signature
        """Return the demands themselves, which least_ms takes in the fewest lanes."""
        return representations

    def least_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:
        """Return [..., 2] the times of one call in the fewest lanes."""
        demands = sums.reshape(-1, NUM_CALLS, NUM_DEMANDS + 3)[:, :, :NUM_DEMANDS].astype(np.float64).sum(axis=1)
        kernels = combined_seconds(demands / MS_PER_SECOND, np.full(len(demands), 0.25)) + DEVICE_SECONDS
        occupied = np.zeros((len(demands), NUM_CALLS), dtype=np.bool_)
        occupied[:, 0] = True
        spread = np.zeros((len(demands), NUM_CALLS, 2))
        spread[:, 0] = kernels
        return self._step_ms(spread, occupied, sums, pipeline)

    def _step_ms(
        self, kernels: FloatArray, occupied: NDArray[np.bool_], sums: FloatArray, pipeline: Pipeline
    ) -> FloatArray:
        """Return [..., 2] the times of a device's calls one after another, as simulator.compute.set_seconds does."""
        device: FloatArray = kernels.reshape(-1, NUM_CALLS, 2).sum(axis=1)
        if pipeline is Pipeline.NONE:
            calls = occupied.reshape(-1, NUM_CALLS).sum(axis=1)
            device = overlapped(np.stack([device, calls[:, None] * HOST_SECONDS]))
        return (device * MS_PER_SECOND).reshape(*sums.shape[:-1], 2)

    @property
    def is_convex(self) -> bool:
        """The simulator's times are not rescaled."""
        return True

    def tangent_ms(self, sums: FloatArray, *, num_calls: int) -> tuple[FloatArray, FloatArray]:
        """Return times [2] and slopes [2, 160] of calls in the fewest lanes, by small steps along each demand."""

        def times_ms(points: FloatArray) -> FloatArray:
            demands = points.reshape(-1, NUM_CALLS, NUM_DEMANDS + 3)[:, :, :NUM_DEMANDS].sum(axis=1)
            kernels = combined_seconds(demands / MS_PER_SECOND, np.full(len(demands), 0.25))
            return (kernels + num_calls * DEVICE_SECONDS) * MS_PER_SECOND

        step = 1e-6 * sums.max()
        below, above = (times_ms(np.maximum(sums + sign * step * np.eye(len(sums)), 0.0)) for sign in (-1, 1))
        widths = sums + step - np.maximum(sums - step, 0.0)
        return times_ms(sums[None])[0], ((above - below) / widths[:, None]).T

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] the simulator's forward and backward all-to-all times."""
        return DeviceSimulator(self.device).transfer_ms(max_dim_sums, exchange)

    def reduction_ms(self, num_bytes: FloatArray, reduction: Reduction) -> FloatArray:
        """Return [..., 2] the simulator's forward and backward times."""
        return DeviceSimulator(self.device).reduction_ms(num_bytes, reduction)

    def dense_update_ms(self, gradient_bytes: FloatArray) -> FloatArray:
        """Return [...] the simulator's times."""
        return DeviceSimulator(self.device).dense_update_ms(gradient_bytes)

    def expansion_ms(self, num_features: int, num_rows: float, num_bytes: float) -> float:
        """Return the simulator's time."""
        return DeviceSimulator(self.device).expansion_ms(num_features, num_rows, num_bytes)

    def codec_ms(self, kind: WireType, encoded: FloatArray, decoded: FloatArray) -> FloatArray:
        """Return the times of measured types, otherwise the simulator's."""
        return codec_ms(kind, encoded, decoded, device=self.device, measured=self.codecs)

    def matrices_ms(self, forward_flops: float, backward_flops: float) -> tuple[float, float]:
        """Return the measured times, otherwise the simulator's."""
        return matrices_ms(forward_flops, backward_flops, device=self.device, measured=self.matrices)

    def dense_other_ms(self, passes: DensePasses) -> float:
        """Return the simulator's times."""
        return DeviceSimulator(self.device).dense_other_ms(passes)

    def dense_traffic_ms(self, one: DensePass) -> float:
        """Return the simulator's times."""
        return DeviceSimulator(self.device).dense_traffic_ms(one)

    def host_times(self, work: HostWork) -> HostTimes:
        """Return the simulator's times."""
        return DeviceSimulator(self.device).host_times(work)

    def validity_warnings(self, request: PlanRequest) -> tuple[str, ...]:  # noqa: ARG002 - a bundle's signature
        """Return none: the simulator has no training range."""
        return ()

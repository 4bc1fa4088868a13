"""A cost model without learning error: its representation is the simulator's demands, its times the simulator's."""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.bundle import BundleManifest, ErrorReport, Network
from neuroshard_api.request import PlanRequest
from neuroshard_api.topology import DeviceType, Topology
from neuroshard_costs.bundle import NETWORK_FEATURES
from neuroshard_costs.features import FEATURE_VERSION, Float32Array
from neuroshard_costs.shards import FloatArray, ShardArrays
from neuroshard_costs.simulator.communication import Network as Links
from neuroshard_costs.simulator.compute import call_seconds, demand_seconds
from neuroshard_costs.simulator.device import DeviceSimulator

MS_PER_SECOND = 1000.0


@dataclass(frozen=True)
class ExactCosts:
    """Stands in for a bundle of a device; the search cannot tell the difference."""

    device: DeviceType

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

    def represent(self, shards: ShardArrays) -> Float32Array:
        """Return [n, 7] milliseconds that each resource is busy."""
        return (demand_seconds(self.device, shards) * MS_PER_SECOND).astype(np.float32)

    def compute_ms(self, sums: Float32Array) -> Float32Array:
        """Return [..., 2] the simulator's forward and backward times; 0 for a sum of 0."""
        demands = sums.reshape(-1, sums.shape[-1]).astype(np.float64) / MS_PER_SECOND
        times = call_seconds(demands, np.arange(len(demands)), len(demands)) * MS_PER_SECOND
        times[~demands.any(axis=1)] = 0.0
        return times.reshape(*sums.shape[:-1], 2).astype(np.float32)

    @property
    def is_convex(self) -> bool:
        """The simulator's times are not rescaled."""
        return True

    def transfer_ms(
        self,
        max_dim_sums: FloatArray,
        *,
        mean_dim_sum: float,
        topology: Topology,
        batch_size_per_device: int,
        bytes_per_element: int,
    ) -> FloatArray:
        """Return [..., 2] the simulator's forward and backward all-to-all times."""
        simulator = DeviceSimulator(self.device)
        times = [
            simulator.communication_ms(
                Links.of(topology),
                max_dim_sum=max_dim_sums,
                mean_dim_sum=mean_dim_sum,
                batch_size_per_device=batch_size_per_device,
                bytes_per_element=bytes_per_element,
                direction=direction,
            )
            for direction in ("forward", "backward")
        ]
        return np.stack(np.broadcast_arrays(*times, max_dim_sums)[:2], axis=-1)

    def validity_warnings(self, request: PlanRequest) -> tuple[str, ...]:  # noqa: ARG002 - a bundle's signature
        """Return none: the simulator has no training range."""
        return ()

"""Builders of bundles: networks of random weights, which need no training."""

from pathlib import Path
from typing import Any

import numpy as np
from neuroshard_api.documents.bundle import BundleManifest, ErrorReport, Network, Range
from neuroshard_costs.bundle import NETWORK_FEATURES, save_bundle
from neuroshard_costs.features import FEATURE_VERSION, Collectives, Float32Array
from support.builders import device_type

NUM_DEMANDS = 5
NUM_UNITS = 3
WIDTH = 7


def mlp_weights(num_inputs: int, num_outputs: int, *, seed: int = 0) -> dict[str, Float32Array]:
    """Return small random weights of one hidden layer."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> Float32Array:
        return (0.1 * random.standard_normal(shape)).astype(np.float32)

    return {
        "mean": normal(num_inputs),
        "std": 1 + np.abs(normal(num_inputs)),
        "around": normal(num_inputs, num_outputs),
        "layer0.weight": normal(num_inputs, WIDTH),
        "layer0.bias": normal(WIDTH),
        "layer1.weight": normal(WIDTH, num_outputs),
        "layer1.bias": normal(num_outputs),
    }


def compute_weights(*, seed: int = 0) -> dict[str, Float32Array]:
    """Return random weights of a compute network whose head is monotone."""
    random = np.random.default_rng(seed)
    shard = mlp_weights(len(NETWORK_FEATURES["compute"]), NUM_DEMANDS, seed=seed)
    bias = random.random(2 * NUM_UNITS + 2, dtype=np.float32)
    bias[NUM_UNITS : 2 * NUM_UNITS] *= -1
    return {f"shard.{name}": array for name, array in shard.items()} | {
        "head_in": random.random((NUM_DEMANDS, 2 * NUM_UNITS + 2), dtype=np.float32),
        "head_bias": bias,
        "head_out": random.random((NUM_UNITS, 2), dtype=np.float32),
        "lane_share": random.random(NUM_DEMANDS, dtype=np.float32),
    }


def weights(*, seed: int = 0) -> dict[str, Float32Array]:
    """Return random weights of a whole bundle."""
    networks = {"compute": compute_weights(seed=seed)}
    for name in ("forward_communication", "backward_communication"):
        networks[name] = mlp_weights(len(NETWORK_FEATURES["forward_communication"]), 3, seed=seed)
    return {f"{name}.{key}": array for name, arrays in networks.items() for key, array in arrays.items()}


def manifest(*, validity: dict[str, Range] | None = None, **fields: Any) -> BundleManifest:
    """Return a manifest of random networks, valid within the given ranges."""
    return BundleManifest(
        name="random",
        source="simulated:Test Device 80GB",
        device=device_type(),
        feature_version=FEATURE_VERSION,
        networks=tuple(
            Network(
                name=name,
                features=features,
                hidden=(WIDTH,),
                validity=validity or {},
                hold_out=ErrorReport(num_samples=1, mse_ms2=0.0, mape=0.0, kendall_tau=1.0),
            )
            for name, features in NETWORK_FEATURES.items()
        ),
        weights_sha256="0" * 64,
        **fields,
    )


def saved_bundle(path: Path, *, validity: dict[str, Range] | None = None, seed: int = 0) -> Path:
    """Write a bundle of random weights and return its directory."""
    save_bundle(path, manifest(validity=validity), weights(seed=seed))
    return path


def collectives(**fields: float) -> Collectives:
    """Return one all-to-all of 2 x 4 devices, but for the given fields."""
    values = {
        "mean_dim_sum": 512.0,
        "batch_size_per_device": 1024.0,
        "bytes_per_element": 4.0,
        "num_nodes": 2.0,
        "devices_per_node": 4.0,
        "intra_bandwidth": 4e11,
        "inter_bandwidth": 5e10,
        "intra_latency": 1e-6,
        "inter_latency": 1e-5,
        **fields,
    }
    return Collectives(**{name: np.array([value]) for name, value in values.items()})

"""Cost networks that were just fitted, and the bundle that is made of three of them. Fits nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuroshard_api.documents.bundle import (
    BundleManifest,
    Calibration,
    CodecTimes,
    CollectionParts,
    ErrorReport,
    ExpansionCost,
    Launch,
    MatrixTimes,
    Network,
    NetworkName,
    Range,
    ReductionTimes,
)
from neuroshard_api.documents.topology import DeviceType

from neuroshard_costs.bundle import NETWORK_FEATURES, save_bundle
from neuroshard_costs.features import FEATURE_VERSION, Float32Array
from neuroshard_costs.shards import FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedNetwork:
    """One network with its error on samples it was not fitted to."""

    hidden: tuple[int, ...]
    weights: Mapping[str, Float32Array]
    """By the names that networks.py reads."""
    validity: Mapping[str, Range]
    error: ErrorReport
    notes: Mapping[str, str | int | float]
    """How it was fitted, for people."""
    true_ms: FloatArray
    """Of the held-out samples."""
    predicted_ms: FloatArray
    """Shaped like true_ms."""


def save_fitted(
    path: Path,
    networks: Mapping[NetworkName, FittedNetwork],
    *,
    name: str,
    source: str,
    device: DeviceType,
    training: Mapping[str, str | int | float],
    compute_source: str | None = None,
    calibration: Calibration | None = None,
    launch: Launch | None = None,
    expansion: ExpansionCost | None = None,
    codecs: Sequence[CodecTimes] = (),
    matrices: MatrixTimes | None = None,
    reductions: Sequence[ReductionTimes] = (),
    added_collection: CollectionParts | None = None,
    extras: Mapping[str, bytes] | None = None,
) -> BundleManifest:
    """Write three networks as a bundle directory, replacing one that is there.

    Args:
        path: the directory.
        networks: all three.
        name: of the bundle.
        source: label of what the networks were fitted to.
        device: what they predict.
        training: settings and versions, for people; each network's notes are added under its name.
        compute_source: label of what the compute network was fitted to. None: ``source``.
        calibration: scales of networks that come from another bundle.
        launch: what a call costs beyond its tables. If unset: nothing, as on a CPU, where a call's time includes it.
        expansion: what copies to repeated lists take. None: not measured.
        codecs: times of measured types on the wire.
        matrices: what matrix products take. None: not measured.
        reductions: what collectives of weights and gradients take on the devices that were measured.
        added_collection: what a further collection of tables adds. None: not measured.
        extras: more files, as bundle.save_bundle takes them.
    """
    notes = {f"{part}_{key}": note for part, network in networks.items() for key, note in network.notes.items()}
    manifest = BundleManifest(
        name=name,
        source=source,
        device=device,
        feature_version=FEATURE_VERSION,
        networks=tuple(
            Network(
                name=part,
                features=features,
                hidden=networks[part].hidden,
                validity=dict(networks[part].validity),
                hold_out=networks[part].error,
            )
            for part, features in NETWORK_FEATURES.items()
        ),
        weights_sha256="0" * 64,  # replaced when the weights are written
        compute_source=compute_source,
        training={**training, **notes},
        calibration=calibration,
        launch=launch or Launch(),
        expansion=expansion,
        codecs=tuple(codecs),
        matrices=matrices,
        reductions=tuple(reductions),
        added_collection=added_collection,
    )
    weights = {f"{part}.{key}": array for part, network in networks.items() for key, array in network.weights.items()}
    return save_bundle(path, manifest, weights, extras=extras)

"""From records to a bundle: which way of fitting, and with which error. Measures nothing.

==============  ====================================================================================================
way             taken where
==============  ====================================================================================================
calibration     a bundle of the same kind of device is at hand, and the records are too few to train on
regression      no such bundle is (a CPU's times have not the shape of a GPU's), and the records are too few
training        there are at least MIN_TRAINING_RECORDS compute records and torch is installed; kept if its error is
                below the regression's on the records that both are held against
==============  ====================================================================================================

All-to-alls are always fitted by regression, or by the calibration; where none were measured, the networks of a bundle
of another device stand in, and the bundle is labelled simulated as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from neuroshard_api.bundle import BundleManifest
from neuroshard_api.records import ProfileRecord
from neuroshard_api.topology import DeviceType
from rich.progress import Progress

from neuroshard_costs.bundle import (
    NetworkName,
    bundled_names,
    bundled_root,
    load_bundle,
    part_of,
    read_weights,
)
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.fitting.calibration import calibrate_to, one_source
from neuroshard_costs.fitting.fitted import FittedNetwork, save_fitted
from neuroshard_costs.fitting.record_samples import compute_samples, compute_validity, transfer_validity, transfers
from neuroshard_costs.fitting.versions import library_versions

if TYPE_CHECKING:
    from neuroshard_costs.pretrain.train import PretrainSettings

Method = Literal["calibration", "regression", "training"]

DIRECTIONS: dict[NetworkName, Literal["forward", "backward"]] = {
    "forward_communication": "forward",
    "backward_communication": "backward",
}
LIBRARIES = ("numpy", "scipy", "torch", "neuroshard-operator")

MIN_RECORDS = 12
"""Fewest records of a network that a regression is fitted to: fewer would hardly exceed the coefficients at work."""
MIN_TRAINING_RECORDS = 400
STAND_IN = "h100-80gb"
"""Whose networks stand in for all-to-alls that were not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitReport:
    """What was fitted, and why in this way."""

    manifest: BundleManifest
    method: Method
    reason: str
    """One sentence for people."""


def fit_bundle(
    records: Sequence[ProfileRecord],
    output: Path,
    *,
    device: DeviceType,
    base: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> FitReport:
    """Fit cost models to the records of one machine and write them as a bundle.

    Args:
        records: without those that ran out of memory.
        output: the bundle's directory; one that is there is replaced.
        device: what was measured.
        base: the bundle to calibrate. None: the bundled one of the same device, if there is one.
        seed: of splits and of first weights.
        progress: shows a bar for training. None: silent.

    Raises:
        RecordsError: the records are too few or of several machines.
        BundleError: the base cannot be read.
    """
    source = one_source(records, where="records")
    num_compute = sum(record.compute is not None for record in records)
    if base is None and device.name in bundled_names():
        base = bundled_root() / device.name
    trainable = num_compute >= MIN_TRAINING_RECORDS and find_spec("torch") is not None
    if base is not None and not trainable:
        manifest = calibrate_to(records, base, output)
        return FitReport(
            manifest=manifest,
            method="calibration",
            reason=f"{num_compute} records rescale the bundle {manifest.name} of the same kind of device",
        )
    compute, method, reason = _fitted_compute(records, output, trainable=trainable, seed=seed, progress=progress)
    networks, stand_in = _transfer_networks(records, base or bundled_root() / STAND_IN, seed=seed)
    manifest = save_fitted(
        output,
        {"compute": compute, **networks},
        name=f"{device.name}-profiled",
        source=stand_in or source,
        device=device,
        training={"method": method, "compute_source": source, **library_versions(LIBRARIES)},
    )
    return FitReport(manifest=manifest, method=method, reason=reason)


def training_settings(num_records: int, *, seed: int) -> "PretrainSettings":
    """Return how a compute network is trained on this many records: smaller and longer than on simulated samples."""
    from neuroshard_costs.pretrain.train import PretrainSettings  # noqa: PLC0415 - torch, only where needed

    return PretrainSettings(
        seed=seed,
        num_compute_samples=num_records,
        compute_epochs=150,
        batch_size=32,
        patience=60,
        compute_hidden=(32,),
        num_demands=16,
    )


def _fitted_compute(
    records: Sequence[ProfileRecord], output: Path, *, trainable: bool, seed: int, progress: Progress | None
) -> tuple[FittedNetwork, Method, str]:
    """Return the better of regression and training, and why it is."""
    from neuroshard_costs.fitting.regression import regress_compute  # noqa: PLC0415 - scipy, only where needed

    samples = [record.compute for record in records if record.compute is not None]
    if len(samples) < MIN_RECORDS:
        raise RecordsError(
            f"records: hold {len(samples)} compute records, at least {MIN_RECORDS} are needed; measure longer"
        )
    arrays, validity = compute_samples(records), compute_validity(samples)
    regressed = regress_compute(arrays, validity, seed=seed)
    said = f"regression has an error of {regressed.error.mape:.1%} over five folds of {len(samples)} records"
    if not trainable:
        return regressed, "regression", f"{said}; training takes {MIN_TRAINING_RECORDS} and torch"
    from neuroshard_costs.pretrain.train import fit_compute  # noqa: PLC0415 - torch, only where needed

    settings = training_settings(len(samples), seed=seed)
    trained = fit_compute(arrays, output, settings, validity, progress)
    said = f"{said}, training {trained.error.mape:.1%} on {trained.error.num_samples} held-out records"
    if trained.error.mape < regressed.error.mape:
        return trained, "training", said
    return regressed, "regression", said


def _transfer_networks(
    records: Sequence[ProfileRecord], stand_in: Path, *, seed: int
) -> tuple[dict[NetworkName, FittedNetwork], str | None]:
    """Return both communication networks, and the source of those that stand in. None: both are fitted."""
    from neuroshard_costs.fitting.regression import regress_transfers  # noqa: PLC0415 - scipy

    networks: dict[NetworkName, FittedNetwork] = {}
    for name, direction in DIRECTIONS.items():
        measured = transfers(records, direction)
        if len(measured) >= MIN_RECORDS:
            networks[name] = regress_transfers(measured, transfer_validity(measured), seed=seed)
    if len(networks) == len(DIRECTIONS):
        return networks, None
    manifest, weights = load_bundle(stand_in).manifest, read_weights(stand_in)
    for network in manifest.networks:
        if network.name in DIRECTIONS:
            networks[network.name] = FittedNetwork(
                hidden=network.hidden,
                weights=part_of(weights, network.name),
                validity=network.validity,
                error=network.hold_out,
                notes={"method": f"as in {manifest.name}"},
                true_ms=np.empty(0),
                predicted_ms=np.empty(0),
            )
    return networks, manifest.source

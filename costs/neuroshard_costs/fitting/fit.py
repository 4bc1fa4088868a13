"""From records to a bundle: which way of fitting, and with which error. Measures nothing.

==============  ====================================================================================================
way             of the compute network
==============  ====================================================================================================
calibration     a bundle of the same kind of device, rescaled by two numbers
regression      a sum of physical demands, fitted to the records
training        a network, where there are at least MIN_TRAINING_RECORDS compute records and torch is installed
==============  ====================================================================================================

The way with the lowest error on records that it was not fitted to is taken; their number decides nothing else. Between
regression and training these are the records of the most lookups (fitting.extrapolation). Two cases leave no choice: a
bundle that is named is calibrated, and so are records of the simulator that a bundle is of.

All-to-alls are fitted by regression. Where a bundle of the same device is at hand and no exchange passed between
nodes, the bundle's networks are calibrated instead, since they know that level. Where none were measured, the networks
of a bundle of another device stand in. In both cases the bundle is labelled simulated as they are.

What a call costs beyond its tables is fitted to the records of calls (fitting.launches). Where there are none, a GPU's
host takes as long to launch a call as that of the bundle of the same device, or of the one that stands in. What copies
to repeated lists take is fitted to their records (fitting.expansions), and so are passes of codecs (fitting.codecs),
matrix products (fitting.matrices), collectives of weights and gradients (fitting.reductions), and what a further
collection of tables adds (fitting.collections).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from neuroshard_api.documents.bundle import BundleManifest, Launch, NetworkName
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_api.documents.topology import DeviceType
from rich.progress import Progress

from neuroshard_costs.bundle import (
    bundled_names,
    bundled_root,
    load_bundle,
    part_of,
    read_weights,
)
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.fitting.calibration import calibrate_to, compute_error, one_source, transfer_calibration
from neuroshard_costs.fitting.codecs import fitted_codecs
from neuroshard_costs.fitting.collections import fitted_collection
from neuroshard_costs.fitting.disturbed import undisturbed
from neuroshard_costs.fitting.expansions import fitted_expansion
from neuroshard_costs.fitting.extrapolation import extrapolation_error
from neuroshard_costs.fitting.fitted import FittedNetwork, save_fitted
from neuroshard_costs.fitting.launches import fitted_launch
from neuroshard_costs.fitting.matrices import fitted_matrices
from neuroshard_costs.fitting.record_samples import compute_samples, compute_validity, transfer_validity, transfers
from neuroshard_costs.fitting.reductions import fitted_reductions
from neuroshard_costs.fitting.versions import library_versions
from neuroshard_costs.pretrain.datasets import ComputeSamples

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
_MOST_SHOWN = 10.0
"""Larger errors are shown as more than this: exponentials of a network may be wrong by any factor."""
STAND_IN = "h100-80gb"
"""Whose networks stand in for all-to-alls that were not measured, and whose host for one without a bundle."""


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
    say: Callable[[str], None] = lambda _: None,
) -> FitReport:
    """Fit cost models to the records of one machine and write them as a bundle.

    Args:
        records: without those that ran out of memory. Disturbed ones are left out (fitting.disturbed).
        output: the bundle's directory; one that is there is replaced.
        device: what was measured.
        base: the bundle to calibrate. None: whichever way has the lowest hold-out error.
        seed: of splits and of first weights.
        progress: shows a bar for training. None: silent.
        say: gets a sentence about each kind of record with disturbed ones.

    Raises:
        RecordsError: the records are too few or of several machines.
        BundleError: the base cannot be read.
    """
    records = undisturbed(records, say=say)
    source = one_source(records, where="records")
    num_compute = sum(record.compute is not None for record in records)
    if base is not None:
        return _calibrated(records, base, output, f"{num_compute} records rescale the bundle that was named")
    bundled = bundled_root() / device.name if device.name in bundled_names() else None
    nearest = bundled or bundled_root() / STAND_IN
    if bundled is not None and load_bundle(bundled).manifest.source == source:
        return _calibrated(records, bundled, output, f"{num_compute} records of the simulator that it is of")
    compute, method, reason = _fitted_compute(records, output, seed=seed, progress=progress)
    if bundled is not None:
        error = compute_error(records, bundled)
        reason = f"{reason}, calibration of the bundle {bundled.name} {100 * error:.1f} % with each record left out"
        if error < compute.error.mape:
            return _calibrated(records, bundled, output, reason)
    spans_nodes = any(record.communication is not None and record.communication.num_nodes > 1 for record in records)
    if bundled is not None and not spans_nodes:
        calibration = transfer_calibration(records, bundled)
        networks, stand_in = _networks_of(bundled)
    else:
        calibration = None
        networks, stand_in = _transfer_networks(records, nearest, seed=seed)
    launch, launch_notes = _launch(records, device, nearest)
    manifest = save_fitted(
        output,
        {"compute": compute, **networks},
        name=f"{device.name}-profiled",
        source=stand_in or source,
        device=device,
        compute_source=source,
        training={"method": method, **launch_notes, **library_versions(LIBRARIES)},
        calibration=calibration,
        launch=launch,
        expansion=fitted_expansion(records),
        codecs=fitted_codecs(records),
        matrices=fitted_matrices(records),
        reductions=fitted_reductions(records),
        added_collection=fitted_collection(records),
    )
    return FitReport(manifest=manifest, method=method, reason=reason)


def _launch(records: Sequence[ProfileRecord], device: DeviceType, nearest: Path) -> tuple[Launch, dict[str, str]]:
    """Return the launch of a kernel call and a note of where it comes from."""
    measured = fitted_launch(records)
    if measured is not None:
        return measured, {"launch": "measured"}
    if device.is_cpu:
        return Launch(), {}
    manifest = load_bundle(nearest).manifest
    host = {"host_ms": manifest.launch.host_ms, "host_source": manifest.launch.host_source}
    return Launch().model_copy(update=host), {"launch_host_ms": f"as in {manifest.name} ({manifest.source})"}


def _calibrated(records: Sequence[ProfileRecord], base: Path, output: Path, reason: str) -> FitReport:
    return FitReport(manifest=calibrate_to(records, base, output), method="calibration", reason=reason)


def training_settings(num_records: int, *, seed: int) -> "PretrainSettings":
    """Return settings to train a compute network on this many records: smaller and longer than on simulated samples."""
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
    records: Sequence[ProfileRecord], output: Path, *, seed: int, progress: Progress | None
) -> tuple[FittedNetwork, Method, str]:
    """Return the better of regression and training, and why it is."""
    from neuroshard_costs.fitting.regression import regress_compute  # noqa: PLC0415 - scipy, only where needed

    samples = [record.compute for record in records if record.compute is not None]
    if len(samples) < MIN_RECORDS:
        raise RecordsError(
            f"records: hold {len(samples)} compute records, at least {MIN_RECORDS} are needed; hint: measure longer"
        )
    arrays, validity = compute_samples(records), compute_validity(samples)
    regressed = regress_compute(arrays, validity, seed=seed)
    of_folds = (
        f"regression has an error of {100 * regressed.error.mape:.1f} % over five folds of {len(samples)} records"
    )
    if len(samples) < MIN_TRAINING_RECORDS or find_spec("torch") is None:
        return regressed, "regression", f"{of_folds}; training takes {MIN_TRAINING_RECORDS} and torch"
    from neuroshard_costs.pretrain.train import fit_compute  # noqa: PLC0415 - torch, only where needed

    def train(of: ComputeSamples, scratch: Path) -> FittedNetwork:
        return fit_compute(of, scratch, training_settings(len(of), seed=seed), validity, progress)

    smaller = output.with_name(f"{output.name}-smaller")
    errors = [
        extrapolation_error(arrays, fit)
        for fit in (lambda of: regress_compute(of, validity, seed=seed), lambda of: train(of, smaller))
    ]
    shown = [
        f"{100 * error:.1f} %" if error < _MOST_SHOWN else f"more than {100 * _MOST_SHOWN:.0f} %" for error in errors
    ]
    reason = (
        f"regression has an error of {shown[0]} on the fifth of the records with the most lookups, training {shown[1]}"
    )
    if errors[1] < errors[0]:
        return train(arrays, output), "training", reason
    return regressed, "regression", reason


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
    return _networks_of(stand_in)


def _networks_of(path: Path) -> tuple[dict[NetworkName, FittedNetwork], str | None]:
    """Return the communication networks of a bundle, and its source."""
    manifest, weights = load_bundle(path).manifest, read_weights(path)
    networks: dict[NetworkName, FittedNetwork] = {}
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

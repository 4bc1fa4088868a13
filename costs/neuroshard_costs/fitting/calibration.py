"""Calibration: a few measurements of another machine rescale a bundle's times. Needs no torch and trains nothing.

Each network's time t becomes factor * t ** exponent: a straight line between logarithms, which keeps the order of
times and with it every bound of the search. The line is fitted by iteratively reweighted least squares with Huber's
weights (P. J. Huber, Robust estimation of a location parameter, 1964), so that single outliers count little.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from neuroshard_api.documents.bundle import BundleManifest, Calibration, NetworkName
from neuroshard_api.documents.records import CommunicationSample, ComputeSample, ProfileRecord
from neuroshard_api.documents.request import Pipeline
from neuroshard_api.documents.topology import Topology

from neuroshard_costs.bundle import NETWORK_FEATURES, CostBundle, load_bundle, read_weights, save_bundle
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.fitting.codecs import fitted_codecs
from neuroshard_costs.fitting.collections import fitted_collection
from neuroshard_costs.fitting.disturbed import undisturbed
from neuroshard_costs.fitting.expansions import fitted_expansion
from neuroshard_costs.fitting.launches import fitted_launch
from neuroshard_costs.fitting.matrices import fitted_matrices
from neuroshard_costs.fitting.records import read_records
from neuroshard_costs.fitting.reductions import fitted_reductions
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_costs.shards import FloatArray

MIN_RECORDS = 8
"""Fewest records of a network that are fitted: two numbers from fewer would follow the noise."""

MIN_EXPONENT, MAX_EXPONENT = 0.5, 2.0
_EXCHANGES: dict[str, NetworkName] = {"forward": "forward_communication", "backward": "backward_communication"}
_HUBER_LIMIT = 1.345  # of the scaled residual; 95 % efficiency for normal errors
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_ROUNDS = 20
_LEAST_SPREAD = math.log(4.0)
_EXACT = 1e-9  # below it residuals are rounding


def calibrate(
    bundle_dir: Path, records_path: Path, output: Path, *, say: Callable[[str], None] = lambda _: None
) -> BundleManifest:
    """Rescale a bundle to the machine that was measured and write it as a new bundle.

    At least 8 compute records are needed; a communication network with fewer than 8 records of its direction keeps
    its times. An earlier calibration of the bundle is replaced, not built upon. The bundle's own source stays: only
    the scale is measured, and the host's launches, copies to repeated lists, codecs, matrix products, collectives of
    weights and gradients, and further collections of tables where there are records of them. Disturbed records are left
    out (fitting.disturbed); ``say`` gets a sentence about them.

    Raises:
        RecordsError: the records cannot be read, are too few or of several machines.
        BundleError: the bundle cannot be read.
    """
    records = undisturbed(read_records(records_path), say=say)
    return calibrate_to(records, bundle_dir, output, where=str(records_path))


def calibrate_to(
    records: Sequence[ProfileRecord], bundle_dir: Path, output: Path, *, where: str = "records"
) -> BundleManifest:
    """Do the same with records at hand; ``where`` is what errors call them."""
    bundle = _uncalibrated(bundle_dir)
    source = one_source(records, where=where)
    num_compute = sum(record.compute is not None for record in records)
    if num_compute < MIN_RECORDS:
        raise RecordsError(
            f"{where}: holds {num_compute} compute records, at least {MIN_RECORDS} are needed to tell a "
            f"different machine from noise; hint: measure {MIN_RECORDS - num_compute} more"
        )
    update: dict[str, object] = {"calibration": _calibration(_fits(bundle, records), source)}
    launch = fitted_launch(records)
    if launch is not None:  # the device's part is rescaled with the networks that it was made with
        update["launch"] = bundle.manifest.launch.model_copy(
            update={"host_ms": launch.host_ms, "host_source": launch.host_source}
        )
    expansion = fitted_expansion(records)
    if expansion is not None:
        update["expansion"] = expansion
    codecs = {times.type: times for times in (*bundle.manifest.codecs, *fitted_codecs(records))}
    update["codecs"] = tuple(codecs.values())
    matrices = fitted_matrices(records)
    if matrices is not None:
        update["matrices"] = matrices
    reductions = {each.key: each for each in (*bundle.manifest.reductions, *fitted_reductions(records))}
    update["reductions"] = tuple(reductions.values())
    collection = fitted_collection(records)
    if collection is not None:
        update["added_collection"] = collection
    return save_bundle(output, bundle.manifest.model_copy(update=update), read_weights(bundle_dir))


def compute_error(records: Sequence[ProfileRecord], bundle_dir: Path) -> float:
    """Return the mean relative error of the calibrated compute network, each record left out in turn.

    Raises:
        RecordsError: there are fewer than MIN_RECORDS compute records.
        BundleError: the bundle cannot be read.
    """
    fits = _fits(_uncalibrated(bundle_dir), [record for record in records if record.compute is not None])
    if "compute" not in fits:
        raise RecordsError(f"records: hold fewer than {MIN_RECORDS} compute records; hint: measure more")
    return float(fits["compute"].errors_after.mean())


def transfer_calibration(records: Sequence[ProfileRecord], bundle_dir: Path) -> Calibration | None:
    """Return the scales of the communication networks alone. None: there are too few records of both directions."""
    exchanges = [record for record in records if record.communication is not None]
    fits = _fits(_uncalibrated(bundle_dir), exchanges)
    return _calibration(fits, one_source(records, where="records")) if fits else None


def _uncalibrated(bundle_dir: Path) -> CostBundle:
    loaded = load_bundle(bundle_dir)
    return replace(loaded, manifest=loaded.manifest.model_copy(update={"calibration": None}))


def _fits(bundle: CostBundle, records: Sequence[ProfileRecord]) -> dict[NetworkName, "_Fit"]:
    """Return the fits of those networks that have enough records."""
    return {name: _fit_left_out(pairs) for name, pairs in _pairs(bundle, records).items() if len(pairs) >= MIN_RECORDS}


def _calibration(fits: Mapping[NetworkName, "_Fit"], source: str) -> Calibration:
    def scale(name: NetworkName) -> tuple[float, float]:
        return fits[name].scale if name in fits else (1.0, 1.0)

    return Calibration(
        source=source,
        num_records=sum(fit.num_records for fit in fits.values()),
        compute_scale=scale("compute"),
        forward_communication_scale=scale("forward_communication"),
        backward_communication_scale=scale("backward_communication"),
        mape_before=float(np.concatenate([fit.errors_before for fit in fits.values()]).mean()),
        mape_after=float(np.concatenate([fit.errors_after for fit in fits.values()]).mean()),
        mape_after_by={name: float(fit.errors_after.mean()) for name, fit in fits.items()},
    )


def one_source(records: Sequence[ProfileRecord], *, where: str) -> str:
    """Return the label of all records. Raises RecordsError if there are several or none."""
    sources = sorted({record.source for record in records})
    if len(sources) > 1:
        raise RecordsError(f"{where}: holds records of several machines ({', '.join(sources)}); hint: split the file")
    if not sources:
        raise RecordsError(f"{where}: holds no records; hint: measure first")
    return sources[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """The scale of one network."""

    scale: tuple[float, float]
    """Exponent and factor."""
    num_records: int
    errors_before: FloatArray
    errors_after: FloatArray
    """Relative errors; after: of each record under the scale fitted to the others."""


def _pairs(bundle: CostBundle, records: Sequence[ProfileRecord]) -> dict[NetworkName, FloatArray]:
    """Return [records, times, 2] per network: the logarithms of predicted and measured milliseconds."""
    pairs: dict[NetworkName, list[FloatArray]] = {name: [] for name in NETWORK_FEATURES}
    for record in records:
        if record.compute is not None:
            pairs["compute"].append(_compute_pair(bundle, record, record.compute))
        if record.communication is not None:
            pairs[_EXCHANGES[record.communication.direction]].append(
                _communication_pair(bundle, record, record.communication)
            )
    return {name: np.log(np.array(values)) for name, values in pairs.items() if values}


def _compute_pair(bundle: CostBundle, record: ProfileRecord, sample: ComputeSample) -> FloatArray:
    predicted = bundle.compute_ms(bundle.represent(sample_shards(sample)).sum(axis=0), pipeline=Pipeline.SPARSE_DIST)
    return np.array([predicted, [record.forward_ms, record.backward_ms]], dtype=np.float64).T


def _communication_pair(bundle: CostBundle, record: ProfileRecord, sample: CommunicationSample) -> FloatArray:
    """The transfer is the time of the device that starts last: it waits for none."""
    intra_node, inter_node = sample.links
    exchange = Exchange(
        topology=Topology(
            num_nodes=sample.num_nodes,
            devices_per_node=sample.devices_per_node,
            device=bundle.manifest.device,
            intra_node=intra_node,
            inter_node=inter_node,
        ),
        batch_size_per_device=sample.batch_size_per_device,
        mean_dim_sum=float(np.mean(sample.embedding_dim_sums)),
        bytes_per_element=sample.bytes_per_element,
    )
    columns = np.array(float(max(sample.embedding_dim_sums)))
    predicted = bundle.transfer_ms(columns, exchange)[("forward", "backward").index(sample.direction)]
    measured = (
        record.device_ms[int(np.argmax(sample.start_offsets_ms))] if sample.start_offsets_ms else max(record.device_ms)
    )
    return np.array([[predicted, measured]])


def _fit_left_out(pairs: FloatArray) -> _Fit:
    after = []
    for index in range(len(pairs)):
        slope, intercept = _robust_line(np.delete(pairs, index, axis=0))
        after.append(_errors(pairs[index], slope, intercept))
    slope, intercept = _robust_line(pairs)
    return _Fit(
        scale=(slope, math.exp(intercept)),
        num_records=len(pairs),
        errors_before=_errors(pairs, 1.0, 0.0).ravel(),
        errors_after=np.concatenate(after),
    )


def _errors(pairs: FloatArray, slope: float, intercept: float) -> FloatArray:
    errors: FloatArray = np.abs(np.expm1(intercept + slope * pairs[..., 0] - pairs[..., 1]))
    return errors


def _robust_line(pairs: FloatArray) -> tuple[float, float]:
    """Return slope and intercept of measured over predicted logarithms.

    Times that all lie within a factor of 4 cannot tell an exponent from noise; then the slope is 1.
    """
    predicted, measured = pairs.reshape(-1, 2).T
    has_slope = np.ptp(predicted) >= _LEAST_SPREAD
    weights = np.ones(len(predicted))
    slope, intercept = 1.0, 0.0
    for _ in range(_ROUNDS):
        centre, height = np.average(predicted, weights=weights), np.average(measured, weights=weights)
        if has_slope:
            offset = predicted - centre
            raw = float((weights * offset * (measured - height)).sum() / (weights * offset * offset).sum())
            slope = min(max(raw, MIN_EXPONENT), MAX_EXPONENT)
        intercept = float(height - slope * centre)
        residuals = np.abs(measured - intercept - slope * predicted)
        limit = _HUBER_LIMIT * _NORMAL_MAD * float(np.median(residuals)) + _EXACT
        weights = np.minimum(1.0, limit / np.maximum(residuals, limit))
    return slope, intercept

"""Cost networks from few records: non-negative least squares over physical demands. Needs no torch.

A demand is a product of a shard's features, such as lookups x sectors per row, so that a sum of demands with
coefficients that are not negative is exactly what a compute network without hidden layers says; likewise an all-to-all
is a sum of latencies, transfers and copies. A few dozen coefficients take a few dozen records, where a trained network
takes thousands; what no such sum can say, it never learns. Outliers count little (Huber's weights), as in calibration.

Errors of compute are differences of logarithms, so that half of the times are above what is predicted. A relative error
is 1 at most for a prediction that is too low, and has no limit for one that is too high: times that spread by a third,
as those of a core whose physical core others share, would be predicted a tenth too low. Errors of exchanges are
relative where that predicts held-out records better, since the spread of these may be upwards alone: now and then a
rank is late. On a link that passes little at once and much slowly, relative errors would take all large exchanges for
late ones.
"""

import math
from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.bundle import Range
from scipy.optimize import nnls

from neuroshard_costs.features import (
    CACHE_MIB,
    COMMUNICATION_FEATURES,
    COMPUTE_FEATURES,
    Float32Array,
    communication_features,
    compute_features,
)
from neuroshard_costs.fitting.fitted import FittedNetwork
from neuroshard_costs.fitting.hold_out import error_report
from neuroshard_costs.fitting.record_samples import Transfers
from neuroshard_costs.networks import MAX_LOG, NUM_LOAD_TERMS, load_terms
from neuroshard_costs.pretrain.datasets import ComputeSamples
from neuroshard_costs.shards import OPTIMIZERS, FloatArray

_DEMANDS = (
    ("log2_lookups", "log2_row_sectors"),
    ("log2_lookups", "log2_output_sectors"),
    ("log2_unique_rows", "log2_row_bursts"),
    ("log2_unique_rows", "log2_output_bursts"),
    ("log2_filled_bag_bytes",),
    ("log2_bags", "log2_output_sectors"),
    ("log2_lookups",),
    ("log2_unique_rows",),
    ("log2_bags",),
    (),
    *((f"log2_rows_missing_{size}_mib", "log2_row_bursts") for size in CACHE_MIB),
    *((f"log2_rows_missing_{size}_mib",) for size in CACHE_MIB),
)
"""Products that a shard's time is a sum of; the empty one is a constant per shard."""

_EXCHANGES = (
    (0, ()),
    (0, ("log2_intra_node_latencies_seconds",)),
    (0, ("log2_inter_node_latencies_seconds",)),
    *((term, ("log2_intra_node_transfer_seconds",)) for term in range(NUM_LOAD_TERMS)),
    *((term, ("log2_inter_node_transfer_seconds",)) for term in range(NUM_LOAD_TERMS)),
    *((term, ("log2_total_bytes",)) for term in range(NUM_LOAD_TERMS)),
)
"""Products that an all-to-all's time is a sum of, each times a constant (0) or a load term of networks.load_terms."""

NUM_FOLDS = 5

_HUBER_LIMIT = 1.345  # of the scaled residual; 95 % efficiency for normal errors
_NORMAL_MAD = 1.4826
_ROUNDS = 8
_LEAST_SHARE = 0.2  # of the prediction of the round before, to which a round may fall
_LEAST_MS = 1e-3  # of a prediction, where it is compared by its logarithm
_LOG_RANGE = 64.0  # no feature is above 2^64
_CLOSED = -4.0 * MAX_LOG / math.log(2.0)  # takes the logarithm of another optimizer's demand below any that counts


def regress_compute(samples: ComputeSamples, validity: dict[str, Range], *, seed: int = 0) -> FittedNetwork:
    """Fit the compute network; its error is that of five folds, each predicted by a fit to the others."""
    features = compute_features(samples.shards)
    logs = _logs(features, COMPUTE_FEATURES, _DEMANDS)
    sums = np.zeros((len(samples), len(_DEMANDS)))
    np.add.at(sums, samples.set_index, np.exp2(logs))
    first_shard = np.searchsorted(samples.set_index, np.arange(len(samples)))
    optimizer = samples.shards.optimizer[first_shard]
    used = sorted(set(optimizer.tolist()))
    by_optimizer = np.concatenate([sums * (optimizer == code)[:, None] for code in used], axis=1)
    designs = (_with_constant(sums), _with_constant(by_optimizer))
    predicted = np.stack(
        [_cross_predicted(design, samples.times_ms[:, out], seed, is_even=True) for out, design in enumerate(designs)],
        axis=1,
    )
    forward, backward = (
        _non_negative(design, samples.times_ms[:, out], is_even=True) for out, design in enumerate(designs)
    )
    kept = [(index, None, 0, forward[index]) for index in range(len(_DEMANDS))]
    kept += [
        (index, code, 1, backward[position * len(_DEMANDS) + index])
        for position, code in enumerate(used)
        for index in range(len(_DEMANDS))
    ]
    kept = [entry for entry in kept if entry[3] > 0] or kept[:1]
    around = np.zeros((len(COMPUTE_FEATURES), len(kept)))
    bias = np.zeros(len(kept))
    head_in = np.zeros((len(kept), 4))
    for column, (index, code, out, coefficient) in enumerate(kept):
        for name in _DEMANDS[index]:
            around[COMPUTE_FEATURES.index(name), column] += math.log(2.0)
        if code is not None:
            for other in range(len(OPTIMIZERS)):
                if other != code:
                    around[COMPUTE_FEATURES.index(f"optimizer_{OPTIMIZERS[other].value}"), column] = _CLOSED
        bias[column] = _log(coefficient)
        head_in[column, 2 + out] = 1.0
    weights = {f"shard.{name}": array for name, array in _linear(COMPUTE_FEATURES, around, bias).items()} | {
        "head_in": _float32(head_in),
        "head_bias": _float32(np.array([0.0, 0.0, forward[-1], backward[-1]])),
        "head_out": np.zeros((1, 2), dtype=np.float32),
        "lane_share": np.zeros(len(kept), dtype=np.float32),
    }
    return FittedNetwork(
        hidden=(len(kept), 1),
        weights=weights,
        validity=validity,
        error=error_report(samples.times_ms, predicted, {}),
        notes={"method": "regression", "num_records": len(samples)},
        true_ms=samples.times_ms,
        predicted_ms=predicted,
    )


def regress_transfers(measured: Transfers, validity: dict[str, Range], *, seed: int = 0) -> FittedNetwork:
    """Fit one communication network; its error is that of five folds."""
    features = communication_features(measured.collectives)
    load = np.maximum(measured.max_dim_sum / measured.collectives.mean_dim_sum, 1.0)
    terms = np.stack((np.ones_like(load), *load_terms(load)), axis=1)
    logs = _logs(features, COMMUNICATION_FEATURES, [names for _, names in _EXCHANGES])
    design = np.exp2(logs) * terms[:, [term for term, _ in _EXCHANGES]]
    by_errors = {even: _cross_predicted(design, measured.times_ms, seed, is_even=even) for even in (False, True)}
    is_even = min(by_errors, key=lambda even: _mean_log_error(by_errors[even], measured.times_ms))
    predicted = by_errors[is_even]
    coefficients = _non_negative(design, measured.times_ms, is_even=is_even)
    by_term = [
        [
            (names, value)
            for (of, names), value in zip(_EXCHANGES, coefficients, strict=True)
            if of == term and value > 0
        ]
        for term in range(NUM_LOAD_TERMS)
    ]
    width = max(1, *(len(entries) for entries in by_term))
    around = np.zeros((len(COMMUNICATION_FEATURES), NUM_LOAD_TERMS * width))
    bias = np.full(NUM_LOAD_TERMS * width, -MAX_LOG)
    for term, entries in enumerate(by_term):
        for position, (names, value) in enumerate(entries):
            column = term * width + position
            for name in names:
                around[COMMUNICATION_FEATURES.index(name), column] += math.log(2.0)
            bias[column] = _log(value)
    return FittedNetwork(
        hidden=(NUM_LOAD_TERMS * width,),
        weights=_linear(COMMUNICATION_FEATURES, around, bias),
        validity=validity,
        error=error_report(measured.times_ms, predicted, {}),
        notes={"method": "regression", "num_records": len(measured)},
        true_ms=measured.times_ms,
        predicted_ms=predicted,
    )


def _logs(features: FloatArray, names: Sequence[str], products: Sequence[Sequence[str]]) -> FloatArray:
    """Return [n, products]: the binary logarithm of each product of features."""
    return np.stack(
        [features[:, [names.index(name) for name in product]].sum(axis=1) for product in products],
        axis=1,
    )


def _with_constant(sums: FloatArray) -> FloatArray:
    return np.concatenate((sums, np.ones((len(sums), 1))), axis=1)


def _non_negative(design: FloatArray, times_ms: FloatArray, *, is_even: bool) -> FloatArray:
    """Return coefficients >= 0 of the columns that keep errors small.

    Args:
        design: [n, columns]
        times_ms: [n]
        is_even: whether errors are differences of logarithms, about the prediction of the round before (Gauss-Newton).
            If not, they are relative to the times.
    """
    reference, weights = times_ms, np.ones(len(times_ms))
    result: FloatArray = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        relative = design / reference[:, None]
        scale = np.maximum(relative.max(axis=0), 1e-300)
        scaled = relative / scale
        wanted = 1.0 + np.log(times_ms / reference)
        coefficients, _ = nnls(scaled * weights[:, None], wanted * weights)
        result = coefficients / scale
        predicted = np.maximum(scaled @ coefficients, _LEAST_SHARE) * reference
        residuals = np.abs(np.log(predicted / times_ms)) if is_even else np.abs(predicted / times_ms - 1.0)
        limit = _HUBER_LIMIT * _NORMAL_MAD * float(np.median(residuals)) + 1e-9
        weights = np.sqrt(np.minimum(1.0, limit / np.maximum(residuals, limit)))
        if is_even:
            reference = predicted
    return result


def _cross_predicted(design: FloatArray, times_ms: FloatArray, seed: int, *, is_even: bool) -> FloatArray:
    """Return each time as predicted by the fit to the folds that it is not in (see _non_negative)."""
    fold = np.random.default_rng([seed, 3]).permutation(len(times_ms)) % NUM_FOLDS
    predicted = np.empty(len(times_ms))
    for each in range(NUM_FOLDS):
        held_out = fold == each
        predicted[held_out] = design[held_out] @ _non_negative(design[~held_out], times_ms[~held_out], is_even=is_even)
    return predicted


def _mean_log_error(predicted: FloatArray, times_ms: FloatArray) -> float:
    return float(np.mean(np.abs(np.log(np.maximum(predicted, _LEAST_MS) / times_ms))))


def _linear(names: Sequence[str], around: FloatArray, bias: FloatArray) -> dict[str, Float32Array]:
    """Return the weights of an MLP that is its linear path alone.

    Logarithms are divided by their range, so that all inputs are rounded alike (arithmetic.ExactMatrix).
    """
    num_inputs, num_outputs = around.shape
    scale = np.array([_LOG_RANGE if name.startswith("log2_") else 1.0 for name in names])
    return {
        "mean": np.zeros(num_inputs, dtype=np.float32),
        "std": _float32(scale),
        "around": _float32(around * scale[:, None]),
        "layer0.weight": np.zeros((num_inputs, num_outputs), dtype=np.float32),
        "layer0.bias": _float32(bias),
    }


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -MAX_LOG


def _float32(array: FloatArray) -> Float32Array:
    return np.ascontiguousarray(array, dtype=np.float32)

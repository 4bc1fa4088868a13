"""Specification of cost networks from few records."""

from dataclasses import replace

import numpy as np
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.features import compute_features
from neuroshard_costs.fitting.record_samples import Transfers
from neuroshard_costs.fitting.regression import regress_compute, regress_transfers
from neuroshard_costs.networks import CommunicationNetwork, ComputeNetwork
from neuroshard_costs.pretrain.datasets import ComputeSamples, communication_samples, compute_samples
from neuroshard_costs.shards import OPTIMIZERS
from support.planner.bundle_builders import collectives

DEVICE = preset("h100-80gb")


def linear_times(samples: ComputeSamples) -> ComputeSamples:
    """Return the samples with times that are a sum of demands: a constant, lookups, and output bytes."""
    shards = samples.shards
    rowwise = shards.optimizer == OPTIMIZERS.index(Optimizer.ROWWISE_ADAGRAD)
    forward = 1e-6 * shards.lookups + 2e-9 * shards.bags * np.ceil(shards.num_columns / 8)
    backward = np.where(rowwise, 5e-6, 2e-6) * shards.unique_rows
    times = np.stack([np.bincount(samples.set_index, weights=each) for each in (forward, backward)], axis=1)
    return replace(samples, times_ms=times + np.array([0.1, 0.2]))


def predicted(network: ComputeNetwork, samples: ComputeSamples) -> np.ndarray:
    """Return the network's prediction for each set."""
    demands = network.demands(compute_features(samples.shards))
    sums = np.zeros((len(samples), demands.shape[1]))
    np.add.at(sums, samples.set_index, demands)
    return network.times_ms(sums, 1.0)


def test_a_sum_of_demands_is_found_exactly() -> None:
    """For each optimizer by itself, and also on sets that were not fitted to."""
    fitted = regress_compute(linear_times(compute_samples(DEVICE, num_samples=200, seed=0)), {})
    unseen = linear_times(compute_samples(DEVICE, num_samples=50, seed=1))

    assert predicted(ComputeNetwork.from_weights(fitted.weights), unseen) == pytest.approx(unseen.times_ms, rel=0.02)
    assert fitted.error.mape < 0.01


def test_the_stated_error_is_that_of_sets_not_fitted_to() -> None:
    """Every set is predicted once, by a fit to the other folds, so noise cannot be learnt by heart."""
    samples = linear_times(compute_samples(DEVICE, num_samples=200, seed=0))
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.3, samples.times_ms.shape))
    fitted = regress_compute(replace(samples, times_ms=samples.times_ms * noise), {})

    assert fitted.error.num_samples == 200
    assert 0.15 < fitted.error.mape < 0.6


def test_times_that_spread_are_predicted_in_their_middle() -> None:
    """Half of them are above: a fit of least relative errors would be a tenth too low."""
    samples = linear_times(compute_samples(DEVICE, num_samples=300, seed=0))
    noise = np.exp(np.random.default_rng(0).normal(0.0, 0.3, samples.times_ms.shape))
    fitted = regress_compute(replace(samples, times_ms=samples.times_ms * noise), {})

    shares = predicted(ComputeNetwork.from_weights(fitted.weights), samples) / samples.times_ms
    assert np.median(shares / noise) == pytest.approx(1.0, abs=0.04)


def test_an_outlier_counts_little() -> None:
    """One call that was disturbed must not bend the fit."""
    samples = linear_times(compute_samples(DEVICE, num_samples=100, seed=0))
    disturbed = samples.times_ms.copy()
    disturbed[7] *= 50
    fitted = regress_compute(replace(samples, times_ms=disturbed), {})

    assert predicted(ComputeNetwork.from_weights(fitted.weights), samples) == pytest.approx(samples.times_ms, rel=0.1)


@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
def test_the_simulators_all_to_all_is_nearly_a_sum(direction: int) -> None:
    """Latencies, transfers and copies say most of it; the weights say what the fit says."""
    drawn = communication_samples(DEVICE, num_samples=300, seed=0)
    measured = Transfers(
        collectives=drawn.collectives, max_dim_sum=drawn.max_dim_sum, times_ms=drawn.times_ms[:, direction]
    )
    fitted = regress_transfers(measured, {})
    network = CommunicationNetwork.from_weights(fitted.weights)
    errors = np.abs(network.transfer_ms(drawn.max_dim_sum, drawn.collectives) / measured.times_ms - 1)

    assert fitted.error.mape < 0.2
    assert errors.mean() < 0.2


def test_an_all_to_all_never_falls_when_the_fullest_device_grows() -> None:
    """The search relies on it."""
    drawn = communication_samples(DEVICE, num_samples=60, seed=2)
    measured = Transfers(collectives=drawn.collectives, max_dim_sum=drawn.max_dim_sum, times_ms=drawn.times_ms[:, 0])
    network = CommunicationNetwork.from_weights(regress_transfers(measured, {}).weights)
    times = network.transfer_ms(np.array([512.0, 700.0, 1000.0, 2000.0]), collectives())

    assert (np.diff(times) >= 0).all()


def test_large_all_to_alls_on_a_link_that_passes_little_at_once_are_no_outliers() -> None:
    """A third of them is small and fast; large ones take three times as long for each byte."""
    drawn = communication_samples(DEVICE, num_samples=60, seed=3)
    rng = np.random.default_rng(3)
    small = np.arange(60) % 3 == 0
    each = drawn.collectives
    sums = np.where(small, 16.0, 1000.0)
    num_devices = each.num_nodes * each.devices_per_node
    megabytes = sums * each.batch_size_per_device * each.bytes_per_element * num_devices / 1e6
    times = np.where(small, 5.0, 15.0) * megabytes * rng.lognormal(sigma=0.05, size=60)
    measured = Transfers(collectives=replace(each, mean_dim_sum=sums), max_dim_sum=sums, times_ms=times)

    network = CommunicationNetwork.from_weights(regress_transfers(measured, {}).weights)
    errors = np.abs(network.transfer_ms(sums, measured.collectives) / times - 1)

    assert np.median(errors[~small]) < 0.4, "relative errors say 0.57"

"""Specification of the error of a way of fitting beyond what it was fitted to."""

import numpy as np
import pytest
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_costs.fitting.extrapolation import compute_ms, extrapolation_error
from neuroshard_costs.fitting.fitted import FittedNetwork
from neuroshard_costs.fitting.record_samples import compute_samples, compute_validity
from neuroshard_costs.fitting.regression import regress_compute
from neuroshard_costs.networks import ComputeNetwork
from neuroshard_costs.pretrain.datasets import ComputeSamples
from support.builders import table
from support.profiler.profiler_builders import compute_sample


def records(count: int) -> list[ProfileRecord]:
    """Return records of one table with more and more lookups, in no order, each in proportion to its lookups."""
    factors = np.random.default_rng(0).permutation(np.arange(1, count + 1))
    return [
        ProfileRecord(
            source="cpu:Test",
            compute=compute_sample(table(pooling_factor=float(each), num_embeddings=10**9, zipf_exponent=0.0)),
            forward_ms=0.25 * each,
            backward_ms=float(each),
        )
        for each in factors
    ]


def regression(samples: ComputeSamples) -> FittedNetwork:
    """Fit by regression."""
    return regress_compute(samples, compute_validity([each.compute for each in records(3) if each.compute]))


def test_the_largest_records_are_predicted_by_a_fit_to_the_others() -> None:
    """A fifth of them; a sum of demands goes on beyond what it was fitted to."""
    samples = compute_samples(records(40))
    seen: list[ComputeSamples] = []

    def fit(smaller: ComputeSamples) -> FittedNetwork:
        seen.append(smaller)
        return regression(smaller)

    assert extrapolation_error(samples, fit) < 0.02
    assert len(seen[0]) == 32
    assert seen[0].shards.lookups.max() < np.sort(samples.shards.lookups)[-8]


def test_the_error_is_that_of_both_directions() -> None:
    """A fit that is half as large in both has half the time as its error."""
    samples = compute_samples(records(40))
    half = compute_samples(
        [
            each.model_copy(
                update={"forward_ms": (each.forward_ms or 0) / 2, "backward_ms": (each.backward_ms or 0) / 2}
            )
            for each in records(40)
        ]
    )

    assert extrapolation_error(samples, lambda _: regression(half)) == pytest.approx(0.5, abs=0.02)


def test_times_of_sets_are_those_of_their_shards_together() -> None:
    """Two tables of one call take what the network says of their demands together."""
    pair = ProfileRecord(
        source="cpu:Test", compute=compute_sample(table("a"), table("b")), forward_ms=1.0, backward_ms=2.0
    )
    single = ProfileRecord(source="cpu:Test", compute=compute_sample(table("a")), forward_ms=1.0, backward_ms=2.0)
    network = ComputeNetwork.from_weights(regression(compute_samples(records(40))).weights)
    one, two = compute_ms(network, compute_samples([single, pair]))

    assert (two > one).all()
    assert two == pytest.approx(compute_ms(network, compute_samples([pair]))[0])

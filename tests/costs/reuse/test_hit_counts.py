"""Hits per row, sorted into the bins of a reuse histogram."""

import numpy as np
import pytest
from neuroshard_api.documents.tables import REUSE_BINS
from neuroshard_costs.reuse.hit_counts import MEAN_HITS, mix_poisson_bins, poisson_bins, rescaled_bins


def test_mean_hits_lie_in_their_bins() -> None:
    """A row of a bin has at least one hit more than the bin below allows, and at most the bin's own edge."""
    upper = 2.0 ** np.arange(REUSE_BINS)

    assert (upper / 2 < MEAN_HITS).all()
    assert (upper >= MEAN_HITS).all()


@pytest.mark.parametrize("rate", [1e-6, 0.3, 5.0, 700.0, 1e5])
def test_poisson_bins_agree_with_drawn_counts(rate: float) -> None:
    """The share of rows in every bin is that of a large random sample."""
    counts = np.random.default_rng(0).poisson(rate, 200_000)
    bins = np.searchsorted(2 ** np.arange(REUSE_BINS - 1), counts[counts > 0])
    drawn = np.bincount(bins, minlength=REUSE_BINS) / len(counts)

    assert poisson_bins(np.array([rate]))[0] == pytest.approx(drawn, abs=5e-3)


def test_a_tiny_rate_gives_single_hits_only() -> None:
    """At a rate of 10^-15 a row is hit with just that chance, and once."""
    assert poisson_bins(np.array([1e-15]))[0] == pytest.approx([1e-15] + [0] * 16)


def test_an_offset_adds_certain_hits() -> None:
    """One certain hit and none by chance is the first bin; with rate 0 nothing is added."""
    assert poisson_bins(np.array([0.0]), offset=1)[0] == pytest.approx([1] + [0] * 16, abs=1e-3)


def test_a_mixture_is_the_sum_of_its_parts() -> None:
    """Rows of several rates fall into the bins that each rate gives alone."""
    rates = np.array([[0.01, 3.0, 900.0]])
    rows = np.array([[1000.0, 50.0, 2.0]])

    mixed = mix_poisson_bins(rates, rows)

    assert mixed[0] == pytest.approx(rows[0] @ poisson_bins(rates[0]), rel=1e-9, abs=1e-12)


def test_an_unchanged_batch_leaves_every_row_in_its_bin() -> None:
    """Ratio 1 is the identity, from above and just below."""
    assert rescaled_bins(1.0) == pytest.approx(np.eye(REUSE_BINS))
    assert rescaled_bins(1 - 1e-9) == pytest.approx(np.eye(REUSE_BINS), abs=1e-4)


def test_half_the_batch_keeps_half_of_the_single_hits() -> None:
    """Thinning: a row with one hit keeps it with chance 1/2, one with two keeps at least one with 3/4."""
    halved = rescaled_bins(0.5)

    assert halved[0].sum() == pytest.approx(0.5)
    assert halved[1].sum() == pytest.approx(0.75)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 2.0, 40.0])
def test_rescaling_scales_the_hits(ratio: float) -> None:
    """The mean hits of a row, untouched ones counted, grow in proportion to the batch."""
    middle = slice(5, 9)  # bins whose rescaled counts stay clear of the open bin

    hits = rescaled_bins(ratio) @ MEAN_HITS

    assert hits[middle] == pytest.approx(ratio * MEAN_HITS[middle], rel=0.1)

"""Specification of the hold-out report."""

import numpy as np
import pytest
from neuroshard_costs.fitting.hold_out import Split, error_report, kendall_tau, ranges


def test_every_sample_serves_one_purpose() -> None:
    """Four fifths are fitted to, a tenth validates and a tenth is held out; equal seeds split equally."""
    split = Split.of(50, seed=1)

    assert [len(split.train), len(split.validation), len(split.hold_out)] == [40, 5, 5]
    assert sorted([*split.train, *split.validation, *split.hold_out]) == list(range(50))
    assert np.array_equal(split.train, Split.of(50, seed=1).train)


def test_the_report_has_the_errors_of_the_definition() -> None:
    """10 % too high and 20 % too low are 15 % on average; groups are averaged apart."""
    true_ms, predicted_ms = np.array([1.0, 2.0]), np.array([1.1, 1.6])
    report = error_report(true_ms, predicted_ms, {"kind": np.array(["a", "b"])})

    assert report.mape == pytest.approx(0.15)
    assert report.mse_ms2 == pytest.approx((0.01 + 0.16) / 2)
    assert report.kendall_tau == 1.0
    assert report.mape_by["kind"] == pytest.approx({"a": 0.1, "b": 0.2})


@pytest.mark.parametrize(
    ("second", "tau"),
    [([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], -1.0), ([1, 2, 4, 3], 4 / 6), ([1, 1, 1, 1], 0.0)],
    ids=["same", "reversed", "one swap", "all equal"],
)
def test_kendalls_tau_counts_pairs(second: list[int], tau: float) -> None:
    """Concordant minus discordant pairs over all pairs."""
    assert kendall_tau(np.arange(4.0), np.array(second, dtype=np.float64)) == pytest.approx(tau)


def test_ranges_are_labelled_by_their_ends() -> None:
    """Labels are padded so that they sort."""
    labels = ranges(np.array([1, 3, 4, 15]), (1, 4, 16))

    assert labels.tolist() == ["01-03", "01-03", "04-15", "04-15"]

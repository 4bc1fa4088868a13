"""Specification of the hold-out plot."""

import numpy as np
import pytest

pytestmark = pytest.mark.torch


def test_the_plot_is_a_png_of_equal_bytes() -> None:
    """Equal numbers give equal files."""
    from neuroshard_costs.pretrain.evaluate import plot

    samples = {"compute": (np.array([1.0, 2.0]), np.array([1.1, 2.1])), "other": (np.ones(2), np.ones(2) * 2)}
    first, second = (plot(samples, title="x") for _ in range(2))

    assert first[:4] == b"\x89PNG"
    assert first == second

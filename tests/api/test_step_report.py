"""Step reports of a trainer."""

import pytest
from builders import rank_times, step_report


def test_each_rank_reports_once() -> None:
    """Two rows of one rank cannot both be its median."""
    with pytest.raises(ValueError, match=r"each rank must be there once, found \[0, 1, 1\]"):
        step_report(ranks=(rank_times(0), rank_times(1), rank_times(1)))


def test_a_report_without_ranks_is_refused() -> None:
    """There would be nothing to hold beside the prediction."""
    with pytest.raises(ValueError, match="ranks"):
        step_report(ranks=())

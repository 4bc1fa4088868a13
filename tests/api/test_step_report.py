"""Step reports of a trainer."""

import pytest
from neuroshard_api.documents.counts import MAX_MILLISECONDS
from neuroshard_api.documents.step_report import RankTimes
from neuroshard_api.job.step_cost import measured_cost
from support.builders import rank_times, step_report


def test_each_rank_reports_once() -> None:
    """Two rows of one rank cannot both be its median."""
    with pytest.raises(ValueError, match=r"each rank must be there once, found \[0, 1, 1\]"):
        step_report(ranks=(rank_times(0), rank_times(1), rank_times(1)))


def test_a_report_without_ranks_is_refused() -> None:
    """There would be nothing to hold next to the prediction."""
    with pytest.raises(ValueError, match="ranks"):
        step_report(ranks=())


@pytest.mark.parametrize("field_name", [name for name in RankTimes.model_fields if name.endswith("_ms")])
@pytest.mark.parametrize("wrong", [1e300, 1.001e9, -1.0, float("nan")])
def test_times_beyond_all_measure_are_refused(field_name: str, wrong: float) -> None:
    """In each field, so that sums of them are whole microseconds."""
    with pytest.raises(ValueError, match=field_name):
        rank_times(0, **{field_name: wrong})


def test_the_longest_times_have_a_measured_cost() -> None:
    """Eleven days in each part."""
    longest = {name: MAX_MILLISECONDS for name in RankTimes.model_fields if name.endswith("_ms")}

    assert measured_cost(step_report(ranks=(rank_times(0, **longest),))).step_microseconds == 10**12


def test_the_last_step_is_counted_in_64_bits() -> None:
    """The first one and the number of steps each are; their sum is the job's step."""
    with pytest.raises(ValueError, match=r"num_steps: first_step \+ num_steps must be below 2\^63"):
        step_report(first_step=2**63 - 50)

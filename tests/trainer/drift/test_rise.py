"""Lasting rises of a loss."""

import numpy as np
import pytest
from neuroshard_trainer.drift.rise import USUAL_VALUES, RiseDetector, RiseState

from benchmarks.anomaly_series import NOISES, REPORTS, loss_series


def found(values: "list[float] | np.ndarray[tuple[int], np.dtype[np.float64]]", detector: RiseDetector) -> list[int]:
    """Return the places of the values at which a rise lasts."""
    return [place for place, value in enumerate(values) if detector.add(float(value)) is not None]


def test_a_rise_is_found_with_the_second_report_of_it() -> None:
    """A loss that fell for 200 reports, with 1 % of noise, rises by 10 %."""
    values = loss_series(NOISES[0], rise=0.1, seed=1)

    places = found(values, RiseDetector())

    assert places[0] == REPORTS // 2 + 1


@pytest.mark.parametrize(("factor", "places"), [(1.1, []), (1.3, [200])])
def test_a_single_high_value_is_a_rise_where_noise_has_none_like_it(factor: float, places: list[int]) -> None:
    """One of 10 deviations is a burst, one of 30 is found; neither becomes part of the level."""
    values = loss_series(NOISES[0], rise=0.0, seed=2)
    values[200] *= factor
    detector = RiseDetector()

    assert found(values, detector) == places
    assert max(detector.state.usual) < 0.48


def test_a_small_rise_is_found_once_it_lasts() -> None:
    """One of 5 % in noise of 1 %, within 10 reports; it is the usual level after 30."""
    values = loss_series(NOISES[0], rise=0.05, seed=5)

    places = found(values, RiseDetector())

    assert REPORTS // 2 <= places[0] < REPORTS // 2 + 10
    assert places[-1] < REPORTS // 2 + 35


def test_a_rise_that_stays_becomes_the_usual_level() -> None:
    """After as many values as a level is of; a further rise is found again."""
    first, second = (loss_series(NOISES[0], rise=rise, seed=3)[200:] for rise in (0.0, 0.3))
    values = [*first[:100], *second[:100], *(1.4 * second[100:])]

    places = found(values, RiseDetector())

    assert places == [*range(100, 100 + USUAL_VALUES - 1), *range(200, 200 + USUAL_VALUES - 1)]


def test_rises_like_those_before_are_usual() -> None:
    """Of bursts that come back, the first three are found, and then one that is twice as large."""
    values = loss_series(NOISES[0], rise=0.0, seed=6, reports=1000)
    values[100:1000:50] *= 1.3
    values[925] *= 1.7

    assert found(values, RiseDetector()) == [100, 150, 200, 925]


def test_noise_that_is_not_normal_has_few_rises() -> None:
    """Of three rules each has one in the next 20 values with the probability 3 / (n + 1) at most, after n times 20."""
    rng = np.random.default_rng(7)
    alarms = without = 0
    for _ in range(4):
        values = (1 + rng.pareto(1, size=4000)).tolist()
        alarms += sum(place >= 1000 for place in found(values, RiseDetector()))
        without += sum(place >= 1000 for place in found(values, RiseDetector(larger=0.0)))

    assert alarms <= 4 * sum(3 * 3 / (blocks + 1) for blocks in range(50, 200))
    assert without > 10 * alarms


@pytest.mark.parametrize(("noise", "most"), list(zip(NOISES, (4, 8, 4), strict=True)))
@pytest.mark.parametrize(("series", "reports"), [(100, REPORTS), (10, 10 * REPORTS)])
def test_false_alarms_are_rarer_than_one_in_10_000_reports(noise: str, most: int, series: int, reports: int) -> None:
    """In 40,000 of falling losses, of short and long trainings, with noise of 5 %; one in 5,000 where it has memory."""
    alarms = 0
    for seed in range(series):
        places = found(loss_series(noise, rise=0.0, seed=seed, deviation=0.05, reports=reports), RiseDetector())
        alarms += sum(place - 1 not in places for place in places)

    assert alarms <= most


def test_a_value_far_above_all_before_is_a_rise_once_many_are_known() -> None:
    """Of few deviations, which noise may have: not the first one of 6 %, but one of 10 % after 66 blocks."""
    values = loss_series(NOISES[0], rise=0.0, seed=8, reports=1500)
    values[[700, 1400]] *= 1.06
    values[1450] *= 1.1
    detector = RiseDetector()

    assert found(values[:1300], detector) == []
    assert found(values[1300:], RiseDetector(detector.state)) == [150]
    assert found(values, RiseDetector(record=float("inf"))) == []


def test_a_detector_goes_on_from_its_state() -> None:
    """After each value, through JSON."""
    values = loss_series(NOISES[0], rise=0.1, seed=4)[150:250].tolist()
    one, states = RiseDetector(), []
    for value in values:
        other = RiseDetector(RiseState.model_validate_json(one.state.model_dump_json()))
        states.append((one.add(value), other.add(value)))

    assert any(first is not None for first, _ in states)
    assert all(first == second for first, second in states)

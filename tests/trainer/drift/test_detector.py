"""Detection of a lasting slow-down in step times."""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.replanning import decision as replanning
from neuroshard_trainer.drift.detector import (
    HELD_STEPS,
    RECENT_STEPS,
    REFERENCE_STEPS,
    WARM_UP_STEPS,
    AlarmRule,
    DetectorState,
    ShiftDetector,
    Slowdown,
)
from numpy.typing import NDArray
from support.depth import generated

STEP_MS = 20.0
CHANGE_STEP = 3000
PREPARED = WARM_UP_STEPS + REFERENCE_STEPS


def test_the_reference_begins_where_readers_of_reports_take_it_to() -> None:
    """A drift report does not have the steps of its warm-up."""
    assert WARM_UP_STEPS == replanning.WARM_UP_STEPS


def noise(seed: int, num_steps: int, *, share: float = 0.03) -> NDArray[np.float64]:
    """Return step times with independent normal noise."""
    return STEP_MS * (1 + share * np.random.default_rng(seed).normal(size=num_steps))


def with_pauses(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return step times with a pause each 100 steps and a checkpoint each 500."""
    times = times.copy()
    times[50::100] *= 1.25
    times[499::500] *= 3
    return times


def slower(times: NDArray[np.float64], factor: float, begin: int, end: int | None = None) -> NDArray[np.float64]:
    """Return step times that are longer by a factor from one step to before another."""
    times = times.copy()
    times[begin:end] *= factor
    return times


def changes(times: Sequence[float] | NDArray[np.float64], detector: ShiftDetector | None = None) -> list[Slowdown]:
    """Return the alarms of a series."""
    detector = detector or ShiftDetector()
    found = [detector.add(step, float(value)) for step, value in enumerate(times)]
    return [change for change in found if change is not None]


@pytest.mark.parametrize(("factor", "within"), [(1.05, 60), (1.10, 25), (1.30, 12)])
def test_stationary_noise_is_answered_fast(factor: float, within: int) -> None:
    """The median delay of 20 series keeps to the aim, and the change is dated within as many steps."""
    found = [changes(slower(noise(seed, 4000), factor, CHANGE_STEP)) for seed in range(20)]

    assert all(len(each) == 1 and each[0].rule is AlarmRule.FAST for each in found)
    assert np.median([each[0].found_step - CHANGE_STEP for each in found]) <= within
    assert np.median([abs(each[0].since_step - CHANGE_STEP) for each in found]) <= within / 2


@pytest.mark.parametrize("factor", [1.03, 1.04])
def test_less_than_the_least_share_is_no_change_however_little_noise_there_is(factor: float) -> None:
    """And it does not date the change that comes after it."""
    for seed in range(10):
        times = slower(noise(seed, 5000, share=0.01), factor, CHANGE_STEP)
        assert changes(times) == []
        (found,) = changes(slower(times, 1.1, 4000))

        assert 4000 < found.found_step <= 4250
        assert abs(found.since_step - 4000) <= RECENT_STEPS


def test_with_pauses_a_change_must_last() -> None:
    """Outliers turn the fast rule off; the held one finds 10 % within 250 steps and dates it."""
    for seed in range(10):
        (found,) = changes(with_pauses(slower(noise(seed, 4000), 1.10, CHANGE_STEP)))

        assert found.rule is AlarmRule.HELD
        assert CHANGE_STEP < found.found_step <= CHANGE_STEP + 250
        assert abs(found.since_step - CHANGE_STEP) <= 25


def test_bursts_among_pauses_raise_no_alarm() -> None:
    """Twice as long for 50 steps is not a change."""
    for seed in range(10):
        times = with_pauses(noise(seed, 6000))
        for begin in range(1000, 6000, 700):
            times = slower(times, 2.0, begin, begin + 50)

        assert changes(times) == []


def test_the_first_burst_after_stationary_noise_turns_the_fast_rule_off() -> None:
    """It cannot be distinguished from a change before it ends; later bursts can."""
    times = noise(0, 9000)
    for begin in (3000, 5000, 7000):
        times = slower(times, 2.0, begin, begin + 30)
    detector = ShiftDetector()

    (found,) = changes(times, detector)

    assert (found.rule, detector.change) == (AlarmRule.FAST, None)
    assert found.since_step == pytest.approx(3000, abs=5)


def test_permuted_stationary_noise_stays_below_the_published_rate() -> None:
    """At most 0.2 false alarms per 10,000 steps, on 100,000 steps in orders drawn at random."""
    values = noise(1, 10_000)
    orders = [np.random.default_rng(seed).permutation(values) for seed in range(10)]

    assert sum(len(changes(each)) for each in orders) <= 2


@settings(max_examples=25)
@given(st.floats(min_value=1e-3, max_value=1e6), st.integers(min_value=1, max_value=1500))
def test_a_constant_series_raises_no_alarm(value: float, num_steps: int) -> None:
    """Also one that has no noise to compare with."""
    assert changes([value] * num_steps) == []


FAULTS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -5.0])


@generated(10, 40)
@given(
    st.integers(0, 1000),
    st.sampled_from(
        [
            *(lambda seed, share=share: noise(seed, 3000, share=share) for share in (0.0, 0.001, 0.03, 0.2)),
            lambda seed: with_pauses(noise(seed, 3000)),
        ]
    ),
    st.tuples(st.sampled_from([1.0, 1.03, 1.051, 1.1, 2.0]), st.integers(0, 2900), st.integers(10, 900)),
    st.lists(st.integers(1, 250), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 2999), FAULTS), max_size=3),
)
def test_steps_in_blocks_leave_the_state_that_one_after_the_other_leaves(
    seed: int,
    usual: Callable[[int], NDArray[np.float64]],
    change: tuple[float, int, int],
    blocks: list[int],
    faults: list[tuple[int, float]],
) -> None:
    """To the bit: changes, bursts, and invalid times in a block, and before it steps that are missing or done again."""
    factor, begin, length = change
    times = slower(usual(seed), factor, begin, begin + length)
    for at, value in faults:
        times[at] = value
    one, other = ShiftDetector(), ShiftDetector()
    start, size = 0, itertools.cycle(blocks)
    while start < len(times):
        block = times[start : start + next(size)].tolist()
        first = start + (300 if start > begin else 0) - (500 if start > begin + length else 0)
        for step, value in enumerate(block, start=first):
            one.add(step, value)
        other.add_all(first, block)
        start += len(block)
        assert other.state == one.state

    assert other.ratio == one.ratio
    assert other.is_noise_stationary == one.is_noise_stationary


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(PREPARED, 2900),
    st.floats(1.0, 1.5),
    st.lists(st.tuples(st.integers(0, 2999), FAULTS), max_size=20),
)
def test_a_detector_that_goes_on_from_its_state_raises_the_same_alarms(
    seed: int, cut: int, factor: float, faults: list[tuple[int, float]]
) -> None:
    """State passes through JSON at any step, over invalid values too."""
    times = slower(noise(seed, 3000), factor, 2000)
    for at, value in faults:
        times[at] = value
    whole, first = ShiftDetector(), ShiftDetector()
    expected = changes(times, whole)

    found = changes(times[:cut], first)
    second = ShiftDetector(state=DetectorState.model_validate_json(first.state.model_dump_json()))
    found += [each for step in range(cut, 3000) if (each := second.add(step, float(times[step]))) is not None]

    assert found == expected
    assert second.state == whole.state


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(-20, 20))
def test_the_unit_does_not_matter(seed: int, power: int) -> None:
    """Times in another unit raise the same alarms; powers of two scale without rounding."""
    times = slower(with_pauses(noise(seed, 2500)), 1.2, 1500)

    assert changes(times * 2.0**power) == changes(times)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 3))
def test_state_has_a_bounded_size(seed: int, share: float) -> None:
    """Whatever the noise, and however long the series is."""
    detector = ShiftDetector()
    for step, value in enumerate(np.abs(noise(seed, 5000, share=share))):
        detector.add(step, float(value))
        if step % 500 == 0:
            assert len(json.dumps(detector.state.model_dump(mode="json"))) < 8000


def test_invalid_times_are_counted_and_change_nothing() -> None:
    """Not finite, zero, or below it, as after a jump of the clock."""
    times = noise(0, 2000)
    faulty, clean = ShiftDetector(), ShiftDetector()
    for step, value in enumerate(times):
        clean.add(step, float(value))
        faulty.add(step, float(value))
        faulty.add(step, [math.nan, math.inf, -1e9, 0.0][step % 4])

    assert faulty.rejected == 2000
    assert faulty.state.model_copy(update={"rejected": 0}) == clean.state


def test_one_step_of_an_hour_is_no_change() -> None:
    """A clock that jumps forward, or a machine that slept."""
    times = noise(0, 3000)
    times[2000] = 3.6e6

    assert changes(times) == []


def test_missing_steps_are_no_change() -> None:
    """The numbers of the steps date a change, and gaps between them mean nothing else."""
    detector = ShiftDetector()
    times = slower(noise(0, 3000), 1.2, 2000)

    found = [detector.add(step * 7, float(value)) for step, value in enumerate(times)]

    (change,) = [each for each in found if each is not None]
    assert change.since_step == pytest.approx(7 * 2000, abs=7 * 5)


def first_alarm(times: NDArray[np.float64]) -> tuple[AlarmRule, int] | None:
    """Return rule and step of the first alarm as the rules are written down, each step from all steps before it."""
    usual = times[WARM_UP_STEPS:PREPARED]
    middle = float(np.median(usual))
    deviation = max(1.4826 * float(np.median(np.abs(usual - middle))), 0.01 * middle)
    allowance = max(0.5, 0.05 * middle / deviation / 2)
    skew = float(np.clip((usual - middle) / deviation, -4, 4).mean())
    z = (times[PREPARED:] - middle) / deviation
    total, summed, held = 0.0, 0, 0
    for index in range(len(z)):
        clip = max(4.0, 2 * allowance)
        total = max(0.0, total + float(np.clip(z[index], -clip, clip)) - skew - allowance)
        summed = summed + 1 if total else 0
        since = np.median(times[: PREPARED + index + 1][-min(max(summed, 1), RECENT_STEPS) :])
        is_slow = (
            index + 1 >= RECENT_STEPS and np.median(times[: PREPARED + index + 1][-RECENT_STEPS:]) >= 1.05 * middle
        )
        held = held + 1 if is_slow else 0
        if held >= HELD_STEPS:
            return AlarmRule.HELD, PREPARED + index
        blocks = z[: (index + 1) // 25 * 25].reshape(-1, 25)[-44:]
        is_small = since < 1.05 * middle - 2 * 1.2533 * deviation / math.sqrt(RECENT_STEPS)
        if total >= 25 and len(blocks) == 44 and not is_small:
            judged = blocks[:40]
            is_even = statistics.pstdev(np.median(judged, axis=1).tolist()) <= 1.5 * 1.2533 / 5
            if is_even and (np.abs(judged) > 4).sum() <= 2:
                return AlarmRule.FAST, PREPARED + index
        if total >= 25 and summed >= RECENT_STEPS and is_small:
            total, summed = 0.0, 0
    return None


@generated(3, 8)
@given(
    st.integers(0, 10_000),
    st.sampled_from([1.0, 1.04, 1.06, 1.1, 1.3]),
    st.integers(PREPARED, 2500),
    st.sampled_from([noise, lambda *args, **options: with_pauses(noise(*args, **options))]),
    st.floats(0.001, 0.1),
)
def test_alarms_are_those_of_the_rules_as_written_down(
    seed: int, factor: float, begin: int, usual: Callable[..., NDArray[np.float64]], share: float
) -> None:
    """Windows, sums, and the noise estimate are kept step by step, and raise the same first alarm at the same step."""
    times = slower(usual(seed, 3000, share=share), factor, begin)

    found = changes(times)

    assert [(each.rule, each.found_step) for each in found[:1]] == [each for each in [first_alarm(times)] if each]


def test_many_small_changes_add_up() -> None:
    """The reference does not follow: 1 % every 1,000 steps is found once the sum is above 5 %."""
    times = with_pauses(noise(0, 12_000))
    for begin in range(2000, 10_000, 1000):
        times = slower(times, 1.01, begin)

    (found,) = changes(times)

    assert 4000 < found.found_step < 9500


def test_the_reference_outlives_a_restart() -> None:
    """The warm-up's slow steps are skipped, and a change that happened meanwhile is found."""
    times = noise(0, 2000)
    first = ShiftDetector()
    assert changes(times, first) == []
    second = ShiftDetector(state=first.state)
    second.restarted()
    after = np.concatenate([times[:WARM_UP_STEPS] * 5, 1.2 * noise(1, 400)])

    found = [second.add(2000 + step, float(value)) for step, value in enumerate(after)]

    assert second.reference == first.reference
    (change,) = [each for each in found if each is not None]
    assert change.rule is AlarmRule.HELD
    assert change.found_step <= 2000 + WARM_UP_STEPS + RECENT_STEPS + HELD_STEPS


def test_training_from_an_earlier_checkpoint_forgets_the_steps_after_it() -> None:
    """Otherwise the slow steps before a crash would count with those after it."""
    detector = ShiftDetector()
    slow = slower(with_pauses(noise(0, 2150)), 1.2, 2000)
    assert changes(slow, detector) == []

    found = [detector.add(1900 + step, float(value)) for step, value in enumerate(with_pauses(noise(1, 500)))]

    assert not any(found)


def test_a_change_ends_with_the_slow_steps() -> None:
    """And the next one raises another alarm."""
    times = with_pauses(noise(0, 8000))
    for begin, end in ((2000, 4000), (6000, 8000)):
        times = slower(times, 1.3, begin, end)
    detector = ShiftDetector()

    found = changes(times, detector)

    assert [round(each.since_step, -2) for each in found] == [2000, 6000]
    assert detector.change == found[1]
    assert detector.ratio == pytest.approx(1.3, abs=0.03)

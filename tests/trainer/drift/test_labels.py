"""Labels that are all equal, or of another rate."""

import numpy as np
import pytest
from neuroshard_trainer.drift.labels import ConstantLabels, LabelState, LabelWatch

BATCH = 64


def watched(rate: float, steps: int, seed: int = 0) -> LabelWatch:
    """Return a watch that has seen steps of a rate."""
    watch = LabelWatch()
    for step, count in enumerate(np.random.default_rng(seed).binomial(BATCH, rate, size=steps).tolist()):
        watch.add(step, count, BATCH)
    return watch


@pytest.mark.parametrize(("rate", "within"), [(0.5, 1), (0.03, 20), (0.003, 200)])
def test_a_constant_label_is_found_once_chance_cannot_explain_it(rate: float, within: int) -> None:
    """The rarer the other kind is, the more samples that takes; label and first step of the run are given."""
    watch = watched(rate, 2000)
    found = None
    for step in range(2000, 2000 + within):
        watch.add(step, 0, BATCH)
        found = found or watch.constant

    assert found is not None
    assert found.label == 0
    assert 1900 <= found.first_step <= 2000
    assert found.share_before == pytest.approx(1 - rate, rel=0.1)


def test_labels_that_are_all_1_are_found_as_well() -> None:
    """And the run ends with the first label of the other kind."""
    watch = watched(0.5, 100)
    watch.add(100, BATCH, BATCH)
    assert watch.constant is not None
    assert watch.constant[:2] == (1, 100)
    assert watch.constant.share_before == pytest.approx(0.5, abs=0.05)
    watch.add(101, BATCH - 1, BATCH)
    assert watch.constant is None


def test_labels_that_never_differ_are_found_after_ten_thousand_samples() -> None:
    """There is no rate to compare with."""
    watch = LabelWatch()
    for step in range(156):
        watch.add(step, 0, BATCH)
    assert watch.constant is None
    watch.add(156, 0, BATCH)
    assert watch.constant == ConstantLabels(0, 0, None)


@pytest.mark.parametrize(("rate", "most"), [(0.002, 0), (0.0005, 4)])
def test_rare_labels_are_not_taken_for_constant(rate: float, most: int) -> None:
    """In 200 trainings from their first step on; at a rate of 0.05 % the first 10,000 are equal in 1 of 150."""
    found = 0
    for seed in range(200):
        watch, was_constant = LabelWatch(), False
        for step, count in enumerate(np.random.default_rng(seed).binomial(500, rate, size=40).tolist()):
            watch.add(step, count, 500)
            was_constant |= watch.constant is not None
        found += was_constant

    assert found <= most


def test_data_in_the_order_of_their_labels_have_long_runs_from_the_start() -> None:
    """A run is compared with those before it."""
    watch = LabelWatch()
    found = []
    for step in range(1000):
        watch.add(step, BATCH * (step // 100 % 2), BATCH)
        found.append(watch.constant if step >= 200 else None)

    assert not any(found)


def test_runs_are_found_by_chance_no_more_often_than_the_chance_allows() -> None:
    """With one in a thousand for a run, of 20,000 steps of one label each: a run can begin in each."""
    watch, found = LabelWatch(chance=1e-3), 0
    for step, label in enumerate(np.random.default_rng(0).binomial(1, 0.3, size=20_000).tolist()):
        before = watch.constant
        watch.add(step, label, 1)
        found += watch.constant is not None and before is None

    assert found <= 20


@pytest.mark.parametrize(("rate", "other", "is_found"), [(0.03, 0.05, True), (0.97, 0.95, True), (0.03, 0.031, False)])
def test_another_rate_is_found_with_the_second_report_of_it(rate: float, other: float, *, is_found: bool) -> None:
    """From a tenth of the rarer kind's rate on."""
    watch, samples = LabelWatch(), 100_000
    before = [watch.moved_rate(int(rate * samples), samples) for _ in range(5)]
    since = [watch.moved_rate(int(other * samples), samples) for _ in range(3)]

    assert before == [None] * 5
    assert [each is not None for each in since] == [False, is_found, is_found]


def test_rates_that_are_drawn_have_no_finding() -> None:
    """In 30,000 reports of 2,560 samples, at rates down to one in a thousand."""
    rng = np.random.default_rng(1)
    for rate in (0.001, 0.03, 0.5):
        watch = LabelWatch()
        assert not any(watch.moved_rate(count, 2560) for count in rng.binomial(2560, rate, size=10_000).tolist())


def test_a_watch_goes_on_from_its_state() -> None:
    """In a run, through JSON."""
    watch = watched(0.1, 50)
    watch.moved_rate(300, 3200)
    watch.add(50, 0, BATCH)
    again = LabelWatch(LabelState.model_validate_json(watch.state.model_dump_json()))
    for each in (watch, again):
        for step in range(51, 60):
            each.add(step, 0, BATCH)

    assert watch.constant == again.constant is not None
    assert watch.state == again.state

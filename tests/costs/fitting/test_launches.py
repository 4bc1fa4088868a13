"""Specification of launches that are fitted to records of calls."""

import pytest
from neuroshard_api.documents.records import LaunchTimes, ProfileRecord
from neuroshard_costs.fitting.launches import MIN_RECORDS, fitted_launch
from support.profiler.profiler_builders import compute_sample


def launch_record(**times: tuple[float, float]) -> ProfileRecord:
    """Return a record of one call of 0.1 and 0.2 ms, but for the given times."""
    pairs = {"one_call_ms": (0.1, 0.2), "two_calls_ms": (0.11, 0.23), **times}
    return ProfileRecord(source="measured:GPU", launch=compute_sample(), launch_times=LaunchTimes(**pairs))


def test_a_second_call_costs_the_device_what_two_calls_take_longer_than_one() -> None:
    """Both of half the tables, so that the tables cost the same."""
    launch = fitted_launch([launch_record()] * 3)

    assert launch is not None
    assert launch.device_ms == pytest.approx((0.01, 0.03))
    assert launch.host_ms == (0.0, 0.0)
    assert launch.host_source is None, "a CPU is its own host: its calls say nothing of launches"


def test_the_hosts_part_is_what_the_cost_model_joins_with_the_devices() -> None:
    """A host of 0.3 and 0.4 ms next to a device of 0.1 and 0.2 ms, by the cube norm."""
    alone = ((0.1**3 + 0.3**3) ** (1 / 3), (0.2**3 + 0.4**3) ** (1 / 3))
    launch = fitted_launch([launch_record(alone_ms=alone)] * 3)

    assert launch is not None
    assert launch.host_ms == pytest.approx((0.3, 0.4))
    assert launch.host_source == "measured:GPU"


def test_one_disturbed_record_changes_nothing() -> None:
    """Medians count, and two calls that were faster than one cost nothing more than it."""
    others = [launch_record(two_calls_ms=(9.0, 9.0)), launch_record(two_calls_ms=(0.05, 0.1)), launch_record()]
    launch = fitted_launch([*others, launch_record(), launch_record()])

    assert launch is not None
    assert launch.device_ms == pytest.approx((0.01, 0.03))


def test_too_few_calls_say_nothing() -> None:
    """A call that failed has no times."""
    failed = ProfileRecord(source="measured:GPU", launch=compute_sample(), failure="no kernel")

    assert fitted_launch([*[launch_record()] * (MIN_RECORDS - 1), failed]) is None

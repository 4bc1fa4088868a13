"""The place of a layout's trainings next to others'."""

import pytest

from benchmarks.dense_throughput import verdict


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        ([10.0, 11.0, 12.0], [7.0, 8.0, 9.0], "first"),
        ([10.0, 11.0, 12.0], [9.0, 10.5, 11.5], "equal within the spread"),
        ([9.0, 9.0, 9.0], [10.0, 10.0, 10.0], "10.0 % slower"),
        ([10.0], [], "first"),
        ([], [10.0], "not trained"),
    ],
)
def test_a_layout_is_first_where_its_slowest_training_beats_all_others(
    own: list[float], others: list[float], expected: str
) -> None:
    """It is equal where the ranges touch, and behind by the medians otherwise."""
    assert verdict(own, others) == expected

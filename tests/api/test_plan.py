"""Plans."""

import pytest
from builders import data_with, device_cost, plan
from hypothesis import given, settings
from neuroshard_api.document import DocumentError
from neuroshard_api.plan import Plan
from neuroshard_api.request import PlanRequest
from strategies import requests


@given(requests)
@settings(max_examples=20)
def test_any_plan_survives_json(asked: PlanRequest) -> None:
    """Reading what was written gives an equal value, the request inside included."""
    answer = plan(asked)

    assert Plan.from_json(answer.to_json()) == answer


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tables", []),
        ("tables.0.shards", []),
        ("tables.0.shards.0.device", -1),
        ("tables.0.shards.0.num_columns", 0),
        ("tables.0.sharding_type", "diagonal"),
        ("predicted.total_ms", float("nan")),
        ("predicted.source", "a guess"),
        ("memory.0.capacity_bytes", 0),
        ("gap", -0.1),
    ],
)
def test_a_damaged_plan_is_refused(path: str, value: object) -> None:
    """A plan edited by hand is checked as strictly as any other file."""
    with pytest.raises(DocumentError):
        Plan.from_data(data_with(plan(), path, value))


def test_times_of_a_device_cannot_be_negative() -> None:
    """Waiting is measured from the end of the device's own forward pass."""
    with pytest.raises(ValueError, match="wait_ms"):
        device_cost(wait_ms=-0.1)

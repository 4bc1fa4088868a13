"""Plans."""

import pytest
from hypothesis import given, settings
from neuroshard_api.documents.communication import CommunicationPlan, WireType, WireTypes
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.documents.plan import PRICE_FIELDS, GivenPlan, Plan, any_plan
from neuroshard_api.documents.request import ComputePeak, PlanRequest
from support.builders import data_with, device_cost, plan, request
from support.strategies import requests


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


def test_the_slowest_device_of_joint_passes_has_the_longest_sum_of_both() -> None:
    """Waiting fills every device up to the same total there; where passes count separately, the total decides."""
    long_backward = device_cost(forward_compute_ms=1.0, backward_compute_ms=4.0, wait_ms=0.5)
    long_forward = device_cost(forward_compute_ms=5.0, backward_compute_ms=0.5, wait_ms=0.0)
    for compute_peak, costs, slowest in (
        (ComputePeak.JOINT, (long_backward, long_forward), 1),
        (ComputePeak.SEPARATE, (long_forward, long_backward.model_copy(update={"wait_ms": 4.0})), 1),
    ):
        answer = plan(request(num_devices=2, compute_peak=compute_peak))
        predicted = answer.predicted.model_copy(update={"devices": costs})
        assert answer.model_copy(update={"predicted": predicted}).slowest_device == slowest


def test_a_placement_is_what_workers_do_and_no_price() -> None:
    """Other types that travel are another placement; another price, and exchange that stays exact, are not."""
    first = plan()
    dearer = first.model_copy(update={"lower_bound_ms": first.lower_bound_ms / 2})
    exact = CommunicationPlan(chosen=WireTypes(), reason="nothing is gained")
    narrow = CommunicationPlan(chosen=WireTypes(forward=WireType.FP16))
    found = [first.model_copy(update={"communication": each}).placement_sha256 for each in (exact, narrow)]

    assert dearer.placement_sha256 == first.placement_sha256 == found[0]
    assert found[1] != found[0]

    carried = first.request.model_copy(update={"gradients": GradientExchange(type=GradientType.THRESHOLD)})
    assert first.model_copy(update={"request": carried}).placement_sha256 != first.placement_sha256


def test_a_plan_of_the_version_before_is_read() -> None:
    """With what was chosen in its request, as if that had been asked for."""
    answer = plan()

    for version in ("plan/v1", "plan/v2"):
        assert Plan.from_json(answer.to_json().replace('"plan/v3"', f'"{version}"')) == answer
        assert any_plan(data_with(answer, "schema_version", version)) == answer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replication", {"num_groups": 2, "layout": "contiguous", "devices_per_node": 8}),
        ("stored_types", {"tables": [{"name": "t0", "own": "FP32", "chosen": "FP16", "saved_bytes": 0}]}),
        ("dense", {"units": []}),
    ],
)
def test_a_plan_of_an_earlier_version_whose_request_was_another_is_refused(field: str, value: object) -> None:
    """Its devices, types, or memory are not those that were asked for; the message says what to do."""
    data = {**data_with(plan(), "schema_version", "plan/v2"), field: value}

    with pytest.raises(DocumentError, match=rf"{field}: is of plan/v2.*hint: make the plan again"):
        any_plan(data)
    assert any_plan({**data, field: None} if field != "stored_types" else {**data, field: {"reason": "none"}})


def test_a_plan_may_lack_its_price_as_a_whole() -> None:
    """Without it a plan reads as one that was given; with a part of it nothing reads it."""
    data = {field: value for field, value in data_with(plan(), "gap", 0.25).items() if field not in PRICE_FIELDS}

    given_one = any_plan(data)

    assert type(given_one) is GivenPlan
    assert GivenPlan.from_json(given_one.to_json()) == given_one
    with pytest.raises(
        DocumentError,
        match=r"plan.json: predicted: is missing, the plan has no price"
        r"; hint: give a plan",
    ):
        Plan.from_data(data, where="plan.json")
    with pytest.raises(DocumentError, match=r"bundle: is missing"):
        any_plan({**data, "gap": 0.25})
    with pytest.raises(
        DocumentError,
        match=r"bundle: is missing"
        r"; hint: give all of bundle, predicted, .*, or none of them",
    ):
        GivenPlan.from_data({**data, "gap": 0.25})

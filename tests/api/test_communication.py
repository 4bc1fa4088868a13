"""Types on the wire: their bytes, and which of them can be trained."""

from typing import Any

import pytest
from neuroshard_api.documents.communication import (
    WIRE_FORMATS,
    CommunicationChoices,
    CommunicationPlan,
    WireType,
    WireTypes,
)
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.request import MemorySettings, PlanRequest
from neuroshard_api.documents.tables import DataType
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_api.job.plan_request import plan_request
from pydantic import ValidationError
from support.builders import data_with, job, plan, request

INT8_FP16 = WireTypes(forward=WireType.INT8, backward=WireType.FP16)


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("FP32", 1.0),
        ("FP16", 0.5),
        ("BF16", 0.5),
        ("INT8", 0.3125),
        ("FP8", 0.265625),
        ("MX4", 0.1328125),
        ("TOP32", 0.1875),
        ("TOP16", 0.09375),
        ("TOP8", 0.046875),
    ],
)
def test_a_value_takes_the_bytes_of_its_type_and_its_share_of_the_scales(kind: str, share: float) -> None:
    """Next to the four bytes of FP32."""
    assert WIRE_FORMATS[WireType(kind)].bytes_per_value == 4 * share


def test_mx4_fills_up_the_columns_of_a_device_forward_alone() -> None:
    """As FBGEMM's padded_size does; gradients have whole groups by the batch size."""
    mx4 = WIRE_FORMATS[WireType.MX4]

    assert mx4.sent_bytes(36, 100, pads=True) == 64 * 100 * 17 // 32
    assert mx4.sent_bytes(36, 96, pads=False) == 36 * 96 * 17 // 32


@pytest.mark.parametrize(
    ("kind", "least"), [("FP32", 1), ("FP16", 1), ("INT8", 8), ("FP8", 32), ("MX4", 8), ("TOP8", 32)]
)
def test_the_samples_of_a_device_fill_whole_groups_at_every_width(kind: str, least: int) -> None:
    """Widths are multiples of 4; a group that is not full fails in the middle of a step."""
    types = WireTypes(forward=WireType(kind))

    assert WIRE_FORMATS[types.forward].least_samples == least
    assert types.problem(batch_size_per_device=3 * least, on_cpu=False) is None
    if least > 1:
        found = types.problem(batch_size_per_device=3 * least + 4, on_cpu=False)
        assert found is not None
        assert f"make the batch size a multiple of {least}" in found


@pytest.mark.parametrize("kind", ["BF16", "FP8"])
def test_types_that_torchrec_replaces_on_cpus_are_refused_there(kind: str) -> None:
    """They would silently become FP16, or fail."""
    found = WireTypes(backward=WireType(kind)).problem(batch_size_per_device=1024, on_cpu=True)

    known = "FP32, FP16, INT8, MX4, TOP32, TOP16, TOP8"
    assert found == f"backward: TorchRec has no {kind} codec for CPUs; hint: use one of {known}"


def test_a_request_with_types_that_cannot_be_trained_is_refused() -> None:
    """With the direction, before anything is planned or trained."""
    data = data_with(request(batch_size_per_device=1001), "wire", {"forward": "INT8"})

    with pytest.raises(DocumentError, match=r"wire\.forward: INT8 encodes groups of 32 values, which 1001 samples"):
        PlanRequest.from_data(data)


def test_codecs_exclude_other_types_of_pooled_embeddings() -> None:
    """Codecs take FP32."""
    memory = MemorySettings(output_data_type=DataType.BF16)
    message = "codecs encode FP32, and memory.output_data_type is BF16"
    with pytest.raises(ValidationError, match=message):
        request(memory=memory, wire=INT8_FP16)
    with pytest.raises(ValidationError, match=message):
        request(memory=memory, communication=CommunicationChoices(forward=(WireType.FP16,)))


def test_all_permitted_pairs_are_tried_but_the_exact_one() -> None:
    """Each once; FP32 is permitted in each direction."""
    choices = CommunicationChoices(forward=(WireType.INT8, WireType.INT8), backward=(WireType.FP16,))

    assert [each.text for each in choices.pairs] == [
        "FP32 forward, FP16 backward",
        "INT8 forward, FP32 backward",
        "INT8 forward, FP16 backward",
    ]


def test_a_decision_for_exact_exchange_needs_its_reason() -> None:
    """And one for narrow types has none."""
    with pytest.raises(ValidationError, match="reason: is missing"):
        CommunicationPlan(chosen=WireTypes())
    with pytest.raises(ValidationError, match="reason: is for plans that encode nothing"):
        CommunicationPlan(chosen=INT8_FP16, reason="none")


def split(communication: dict[str, object]) -> dict[str, Any]:
    """Return the parts of a job's spec with this policy and these types."""
    types = {key: value for key, value in communication.items() if key != "policy"}
    policy = {"policy": communication["policy"]}
    return {"training": {"communication": policy}, "experimental": {"communication": types}}


def asked_of(communication: dict[str, object] | None) -> PlanRequest:
    """Return the request of a job with this part of its training."""
    found = job(**({} if communication is None else split(communication)))
    tables = found.spec.model.inline_tables("job")
    assert tables is not None
    return plan_request(found, tables=tables, topology=request().topology)


def test_a_job_decides_what_its_plan_may_send() -> None:
    """Exact and no word of it: nothing; Auto: the permitted types; Fixed: the given ones."""
    types = {"forward": ["INT8"], "backward": ["BF16"]}
    auto = asked_of({"policy": "Auto", "embeddings": types})
    fixed = asked_of({"policy": "Fixed", "embeddings": types})

    assert asked_of(None).to_json() == asked_of({"policy": "Exact"}).to_json()
    assert auto.communication == CommunicationChoices(forward=(WireType.INT8,), backward=(WireType.BF16,))
    assert auto.wire is None
    assert (fixed.communication, fixed.wire) == (None, WireTypes(forward=WireType.INT8, backward=WireType.BF16))
    assert asked_of({"policy": "Fixed", "embeddings": {"forward": ["FP32"], "backward": ["FP32"]}}).wire is None


def test_fixed_types_that_a_batch_does_not_fill_are_named_by_their_field() -> None:
    """As an error of the job, before anything is planned."""
    found = job(**split({"policy": "Fixed", "embeddings": {"forward": ["INT8"], "backward": ["FP16"]}}))
    model = found.spec.model.model_copy(update={"batch_size_per_device": 1001})
    odd = found.model_copy(update={"spec": found.spec.model_copy(update={"model": model})})
    tables = model.inline_tables("job")
    assert tables is not None

    with pytest.raises(
        DocumentError, match=r"spec\.experimental\.communication\.embeddings\.forward: INT8 encodes groups"
    ):
        plan_request(odd, tables=tables, topology=request().topology)


def test_by_default_a_job_sends_everything_as_it_is() -> None:
    """Nothing is compressed without being asked for."""
    narrow = job().spec.narrow_types

    assert (narrow.choices, narrow.fixed, narrow.gradient_choices, narrow.fixed_gradients) == (None, None, None, None)


def test_an_exported_plan_has_the_arguments_of_torchrecs_codecs() -> None:
    """As plain data; none where nothing is encoded."""
    fp8 = WireTypes(forward=WireType.FP8, backward=WireType.BF16)
    exported = TorchRecPlan.of(plan(request(wire=fp8)))

    assert exported.codecs is not None
    assert (exported.codecs.forward, exported.codecs.backward, exported.codecs.fp8_quantize_dim) == ("FP8", "BF16", 128)
    assert TorchRecPlan.of(plan()).codecs is None

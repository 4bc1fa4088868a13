"""The dense profile as a document, and the requests that it fits."""

from typing import Any

import pytest
from neuroshard_api.documents.dense_profile import DenseOperator, DenseProfile, features_sha256
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.request import MemorySettings, PlanRequest
from neuroshard_api.job.plan_request import counts_dense, dense_signature
from support import builders

WIDE = builders.table(embedding_dim=128)


def test_a_counted_dense_part_decides_the_requests_memory() -> None:
    """All four purposes add up; a number of your own takes their place, and nothing is 0."""
    counted = builders.request().with_dense(builders.dense_profile(), where="dense.json")

    assert counted.dense_bytes == builders.dense_profile().total_bytes == 2 * builders.GIB
    assert builders.request(memory=MemorySettings(dense_bytes=7)).dense_bytes == 7
    assert builders.request().dense_bytes == 0
    assert PlanRequest.from_json(counted.to_json()) == counted


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (builders.request(batch_size_per_device=4096), "8,192 samples per device, the request has 4,096"),
        (builders.request(WIDE), "tables with other features or widths"),
        (builders.request(memory=MemorySettings(dense_bytes=0)), "excludes memory.dense_bytes"),
    ],
    ids=["another batch", "another model", "a number as well"],
)
def test_a_profile_of_something_else_is_refused(asked: PlanRequest, sentence: str) -> None:
    """As a file it is named in the sentence, in a request the field is."""
    with pytest.raises(DocumentError, match=rf"dense\.json: .*{sentence}"):
        asked.with_dense(builders.dense_profile(), where="dense.json")

    data = builders.data_with(asked, "dense", builders.data_with(builders.dense_profile(), "optimizer", "Adam"))
    with pytest.raises(DocumentError, match=f"dense: .*{sentence}"):
        PlanRequest.from_data(data, where="request.json")


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("torch_version", "unknown", 'torch_version: .*found "unknown"'),
        ("working_bytes", -1, "working_bytes: .*greater than or equal to 0"),
        ("features_sha256", "abc", "features_sha256"),
        ("units.0.repeats", 0, r"units\[0\].repeats"),
        ("units.0.forward_ms", 1, r"units\[0\].forward_ms: is not a known key"),
    ],
)
def test_a_broken_profile_names_the_field(path: str, value: object, sentence: str) -> None:
    """Versions that no torch has, sizes below 0, and times, which it never holds."""
    with pytest.raises(DocumentError, match=sentence):
        DenseProfile.from_data(builders.data_with(builders.dense_profile(), path, value), where="dense.json")


def with_operators(*operators: DenseOperator) -> dict[str, Any]:
    """Return a profile as data, whose unit has these operators."""
    profile = builders.dense_profile()
    return builders.data_with(profile, "units.0.operators", [each.model_dump(mode="json") for each in operators])


def test_what_is_in_no_operator_is_the_units_own() -> None:
    """All of a profile of an earlier release, which names none."""
    half, quarter = (builders.dense_operators(builders.GIB // 16 // part, "a")[0] for part in (2, 4))
    other = quarter.model_copy(update={"module": "b"})
    profile = DenseProfile.from_data(with_operators(half, other), where="dense.json")

    assert profile.units[0].own_parameters == builders.GIB // 16 // 4
    assert builders.dense_profile().units[0].own_parameters == builders.GIB // 16
    assert "operators" not in builders.dense_profile().to_json()


@pytest.mark.parametrize(
    ("operators", "sentence"),
    [
        (builders.dense_operators(8, "a"), r"units\[0\].operators: .*at least 2"),
        (builders.dense_operators(8, "a", "a"), "operators: 'a' is there twice; hint"),
        (builders.dense_operators(builders.GIB // 16, "a", "b"), "have 134,217,728 parameters together, more than"),
    ],
    ids=["one alone", "one twice", "more than the unit"],
)
def test_operators_are_parts_of_their_unit(operators: tuple[DenseOperator, ...], sentence: str) -> None:
    """A unit with one operator has none; the others have other names, and no more parameters than the unit."""
    with pytest.raises(DocumentError, match=sentence):
        DenseProfile.from_data(with_operators(*operators), where="dense.json")


def test_the_hash_of_features_follows_names_widths_and_order() -> None:
    """Rows and lookups do not decide what the dense part receives."""
    both = builders.table("a", embedding_dim=8), builders.table("b", embedding_dim=8)

    assert features_sha256(both) == features_sha256([table.model_copy(update={"num_embeddings": 7}) for table in both])
    assert features_sha256(both) != features_sha256(both[::-1])
    assert features_sha256(both[:1]) != features_sha256([builders.table("a", feature_names=("a", "b"))])


def test_a_setting_that_differs_from_the_count_is_named() -> None:
    """Layers are compared, the number of epochs is not."""
    counted = builders.dense_profile(signature=dense_signature(builders.job()))
    wider = builders.job(model={**builders.job_data()["spec"]["model"], "overArchLayerSizes": [7]})

    assert counted.other_settings(dense_signature(builders.job(training={"epochs": 3}))) == []
    assert counted.other_settings(dense_signature(wider)) == [
        "was counted with spec.model.overArchLayerSizes = [512, 512, 256], the job has [7]"
    ]


@pytest.mark.parametrize(
    "spec",
    [{"experimental": {"planner": {"denseMemoryPerDevice": "2Gi"}}}, {"trainer": {"command": ["python", "train.py"]}}],
    ids=["a given size", "a trainer of your own"],
)
def test_only_what_our_trainer_builds_is_counted(spec: dict[str, Any]) -> None:
    """A size in the job wins, and nobody knows what another trainer builds."""
    assert counts_dense(builders.job().spec)
    assert not counts_dense(builders.job(**spec).spec)

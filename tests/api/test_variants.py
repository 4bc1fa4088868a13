"""Variants of a job: the jobs that they are, their tables, and what does not go with them."""

from collections.abc import Mapping
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.job.continuation import continuation_facts, other_facts
from neuroshard_api.job.model import Architecture
from neuroshard_api.job.plan_request import dense_signature, plan_request
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded, inline_tables, tables_of_variant, with_variants, without_variants
from support import builders
from support.jobs.broken_rules import SERVED

TWO = ({"name": "base"}, {"name": "other"})


def job(*variants: Mapping[str, Any], **spec: Any) -> DLRMTrainingJob:
    """Return a job with variants."""
    return builders.job(variants=list(variants), **spec)


def test_a_variant_is_the_job_with_its_settings() -> None:
    """What it does not name is the job's, and the samples are those of the job whatever the seed of its weights is."""
    training = {"denseLearningRate": "0.5", "seed": 4, "gradientClipNorm": 1}
    found = expanded(job({"name": "base"}, {"name": "own", "training": training}, training={"epochs": 2, "seed": 9}))

    assert list(found) == ["base", "own"]
    for each in found.values():
        assert (each.spec.variants, each.spec.sample_seed, each.spec.training.epochs) == (None, 9, 2)
    assert found["base"].spec.training.seed == 9
    own = found["own"].spec.training
    assert (own.seed, own.dense_learning_rate, own.gradient_clip_norm) == (4, "0.5", 1)


def test_sizes_of_another_architecture_are_not_taken_over() -> None:
    """A variant with another interaction would be no model with the size of the job's."""
    model = {**builders.job_data()["spec"]["model"], "architecture": "DCNv2", "crossNetwork": {"numLayers": 2}}
    found = expanded(job({"name": "base"}, {"name": "dots", "model": {"architecture": "DLRM"}}, model=model))

    assert found["base"].spec.model.cross.num_layers == 2
    assert found["dots"].spec.model.architecture is Architecture.DLRM
    assert found["dots"].spec.model.cross_network is None


def test_tables_of_all_variants_look_up_the_same_features() -> None:
    """Each has tables of its own, as wide as it asks for, and stays together with its own alone."""
    tables = builders.table_set(
        builders.table("user", embedding_dim=8, colocation_group="g"), builders.table("item", feature_names=("a", "b"))
    )
    found = job({"name": "base"}, {"name": "wide", "model": {"embeddingDim": 64}})
    every = with_variants(tables, found.spec.variants)

    assert [(each.name, each.feature_names) for each in every.tables] == [
        ("base:user", ("user",)), ("base:item", ("a", "b")), ("wide:user", ("user",)), ("wide:item", ("a", "b")),
    ]  # fmt: skip
    assert [each.colocation_group for each in every.tables] == ["base:g", None, "wide:g", None]
    wide = tables_of_variant(every.tables, "wide")
    assert [(each.name, each.embedding_dim, each.colocation_group) for each in wide] == [
        ("user", 64, "g"), ("item", 64, None),
    ]  # fmt: skip
    assert [each.name for each in without_variants(every, found.spec.variants).tables] == ["user", "item"]


def test_without_variants_nothing_is_another_one() -> None:
    """Tables, facts of a continuation, and the signature of the dense part are as before."""
    plain = builders.job()
    tables = plain.spec.model.inline_tables("job")
    assert tables is not None
    assert with_variants(tables, None) is tables
    assert without_variants(tables, None) is tables
    assert "spec.variants" not in {**continuation_facts(plain, tables.tables), **dense_signature(plain)}
    assert "variants" not in plain.to_json()


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({"training": {"denseLearningRate": 1}}, False),
        ({"training": {"seed": 5}}, True),
        ({"model": {"overArchLayerSizes": [3]}}, True),
        ({"model": {"embeddingDim": 64}}, True),
    ],
)
def test_a_set_continues_where_its_models_are_the_same(change: Mapping[str, Any], *, is_other: bool) -> None:
    """Rates may change, as without variants; tensors and initial weights may not."""
    before, now = job(*TWO), job({"name": "base"}, {"name": "other", **change})
    tables = inline_tables(before)
    assert tables is not None
    found = other_facts(continuation_facts(before, tables.tables), continuation_facts(now, tables.tables))

    assert bool(found) == is_other


def test_a_plan_of_variants_names_nothing_that_they_do_not_take() -> None:
    """The job refuses each of the levers that its request does, and without variants neither does."""
    settings: Mapping[LeverName, Mapping[str, Any]] = {
        LeverName.WIRE_TYPES: {"training": {"communication": {"policy": "Auto"}}},
        LeverName.DEVICE_GROUPS: {"planner": {"shardingGroups": {"sizes": [2]}}},
    }
    found = []
    for asked in (job(*TWO), builders.job()):
        tables = inline_tables(asked)
        assert tables is not None
        found.append(plan_request(asked, tables=tables, topology=builders.topology(2)).refused_levers)

    assert found == [tuple(settings), None]
    for spec in settings.values():
        with pytest.raises(DocumentError, match="variants: "):
            job(*TWO, **spec)
        builders.job(**spec)


def test_a_plan_of_variants_has_a_replicated_dense_part() -> None:
    """The planner is asked for nothing that they do not train with."""
    found = job(*TWO)
    tables = inline_tables(found)
    assert tables is not None
    request = plan_request(found, tables=tables, topology=builders.topology(2))

    assert request.dense_choices is not None
    assert request.dense_choices.policy.value == "replicate"
    assert len(request.tables.tables) == 2 * len(builders.job().spec.model.embedding_tables or ())


@pytest.mark.parametrize(
    ("variants", "spec", "reason"),
    [
        (TWO[:1], {}, "spec.variants: needs at least 2"),
        ((TWO[0], TWO[0]), {}, "name 'base' occurs twice"),
        (
            (TWO[0], {"name": "a.b"}),
            {},
            r"spec.variants\[1\].name: .*; hint: use lower-case letters, digits, and hyphens",
        ),
        (
            tuple({"name": f"v{number}"} for number in range(33)),
            {},
            "spec.variants: takes at most 32 entries, found 33",
        ),
        (
            (TWO[0], {"name": "b", "model": {"numDenseFeatures": 3}}),
            {},
            r"variants\[1\].model.numDenseFeatures: is the same in all of them; hint: set spec.model.numDenseFeatures",
        ),
        (
            (TWO[0], {"name": "b", "training": {"maxSteps": 3}}),
            {},
            r"variants\[1\].training.maxSteps: is the same in all of them; hint: set spec.training.maxSteps",
        ),
        ((TWO[0], {"name": "keys"}), {}, "attribute of torch's ModuleDict"),
        ([{"name": f"v{number}"} for number in range(33)], {}, "at most 32"),
        ((TWO[0], {"name": "other", "model": {"wukong": {}}}), {}, "wukong is for the architecture Wukong"),
        (
            (TWO[0], {"name": "other", "training": {"denseOptimizer": "SGD"}}),
            {},
            "denseOptimizer: is the same in all of them",
        ),
        (
            (TWO[0], {"name": "other", "model": {"batchSizePerDevice": 2}}),
            {},
            "batchSizePerDevice: is the same in all of them",
        ),
        (TWO, {"trainer": {"command": ["train"]}}, "trainer.command"),
        (
            TWO,
            {"experimental": SERVED},
            "not on experimental.embeddingServers; hint: remove one of them",
        ),
        (TWO, {"planner": {"shardingGroups": {"sizes": [2]}}}, "shardingGroups"),
        (TWO, {"training": {"communication": {"policy": "Auto"}}}, "communication.policy must be Exact"),
        (TWO, {"training": {"denseParallelism": {"policy": "Shard"}}}, "dense parts are replicated"),
        (TWO, {"data": {"format": "Parquet", "path": "x", "sessionColumn": "s"}}, "data.deduplication: Off"),
    ],
)
def test_what_does_not_go_with_variants_is_refused(
    variants: list[Mapping[str, Any]], spec: Mapping[str, Any], reason: str
) -> None:
    """With the field, and a remedy."""
    with pytest.raises(DocumentError, match=reason):
        job(*variants, **spec)

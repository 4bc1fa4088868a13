"""The dense part of variants that train together, next to a count of their joint model."""

from typing import Any

import pytest
import torch
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import inline_tables
from neuroshard_trainer import dense_profile as counting
from neuroshard_trainer.dense_profile import dense_profile, describe_dense
from neuroshard_trainer.model.variant_model import VariantModel
from neuroshard_trainer.variants import mean_losses, summed
from support import builders

SAMPLES = 4096
TABLES = [{"name": f"t{number}", "numEmbeddings": 100, "embeddingDim": 16} for number in range(8)]
VARIANTS: list[dict[str, Any]] = [
    {"name": "base"},
    {"name": "fast", "training": {"denseLearningRate": "0.05"}},
    {"name": "large", "model": {"denseArchLayerSizes": [64, 32], "overArchLayerSizes": [128, 64]}},
    {"name": "narrow", "model": {"embeddingDim": 8}},
]


def job_of(variants: list[dict[str, Any]], **model: Any) -> DLRMTrainingJob:
    """Return a job with variants."""
    sizes = {"batchSizePerDevice": SAMPLES, "numDenseFeatures": 5, "denseArchLayerSizes": [32]}
    data = builders.job_data(model={"embeddingTables": TABLES, "overArchLayerSizes": [32], **sizes, **model})
    return DLRMTrainingJob.from_data({**data, "spec": {**data["spec"], "variants": variants}})


def counted(job: DLRMTrainingJob) -> DenseProfile:
    """Return the dense part of a job as it is counted for a plan, its optimizer as on a CPU."""
    tables = inline_tables(job)
    assert tables is not None
    return dense_profile(job, tables, multi_tensor=False)


def counted_jointly(job: DLRMTrainingJob) -> DenseProfile:
    """Return that of the model that trains."""
    tables = inline_tables(job)
    assert tables is not None
    return describe_dense(
        lambda: VariantModel(job, tables.tables),
        lambda: (torch.empty(SAMPLES, job.spec.model.num_dense_features), None),
        tables=tables.tables,
        batch_size=SAMPLES,
        optimizer=lambda weights: torch.optim.Adam(weights, foreach=False),
        loss=lambda logits: summed(mean_losses(logits, torch.empty(SAMPLES))),
    )


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"architecture": "DCNv2", "crossNetwork": {"numLayers": 2, "lowRankDim": 8}},
        {"architecture": "Wukong", "wukong": {"numLayers": 2, "numInteractions": 4, "lowRankDim": 3}},
    ],
    ids=["DLRM", "DCNv2", "Wukong"],
)
@pytest.mark.parametrize("count", [2, 4])
def test_variants_are_counted_as_their_joint_model(model: dict[str, Any], count: int) -> None:
    """Sizes and operations are equal; memory is never less, and at most a few percent more."""
    job = job_of(VARIANTS[:count], **model)
    found, joint = counted(job), counted_jointly(job)

    for field in ("batch_size_per_device", "features_sha256", "optimizer", "input_bytes"):
        assert getattr(found, field) == getattr(joint, field)
    for field in ("weights_bytes", "gradient_bytes", "optimizer_state_bytes", "passes"):
        assert getattr(found, field) == getattr(joint, field)
    assert found.num_parameters == joint.num_parameters
    assert {unit.module.split(".")[1] for unit in found.units} == {each["name"] for each in VARIANTS[:count]}
    assert joint.working_bytes <= found.working_bytes <= 1.05 * joint.working_bytes


def test_variants_that_differ_in_no_size_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one set, and over all sets of a process."""
    sizes: list[int] = []
    count = counting._counted

    def noted(*arguments: Any, batch_size: int, **named: Any) -> Any:
        sizes.append(batch_size)
        return count(*arguments, batch_size=batch_size, **named)

    monkeypatch.setattr(counting, "_counted", noted)
    monkeypatch.setattr(counting, "_COUNTED", {})
    for variants in (VARIANTS[:2], VARIANTS[:3], VARIANTS[1:3]):
        counted(job_of(variants))

    assert sizes == [SAMPLES] * 2

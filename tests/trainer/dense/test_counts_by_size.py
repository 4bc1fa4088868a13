"""Counts of the dense part at several batch sizes, next to counts at each of them."""

from typing import Any

import pytest
import torch
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.job.training import DenseOptimizer
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import inline_tables
from neuroshard_trainer import dense_profile as counting
from neuroshard_trainer.dense.counts_by_size import Counted, counts_by_size
from neuroshard_trainer.dense.optimizers import DENSE_OPTIMIZERS
from neuroshard_trainer.dense_profile import dense_profile, dense_profiles, describe_dense
from neuroshard_trainer.model.dlrm import RecommendationModel
from neuroshard_trainer.variants import mean_losses
from support import builders

SIZES = (1024, 2048, 4096, 6144, 8192)


def job_of(**model: Any) -> DLRMTrainingJob:
    """Return a job with some small layers."""
    tables = [{"name": f"t{number}", "numEmbeddings": 100, "embeddingDim": 8} for number in range(3)]
    sizes = {"numDenseFeatures": 3, "denseArchLayerSizes": [16], "overArchLayerSizes": [64]}
    return DLRMTrainingJob.from_data(builders.job_data(model={"embeddingTables": tables, **sizes, **model}))


@pytest.mark.parametrize(
    "model",
    [{}, {"architecture": "Wukong", "wukong": {"numLayers": 1, "numInteractions": 4, "lowRankDim": 3}}],
    ids=["DLRM", "Wukong"],
)
def test_most_sizes_follow_from_others_exactly(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiles are those of counts at each size."""
    job = job_of(**model)
    tables = inline_tables(job)
    assert tables is not None
    counted: list[int] = []
    count = counting._counted

    def noted(*arguments: Any, batch_size: int, **named: Any) -> Counted:
        counted.append(batch_size)
        return count(*arguments, batch_size=batch_size, **named)

    monkeypatch.setattr(counting, "_COUNTED", {})
    monkeypatch.setattr(counting, "_counted", noted)
    found = dense_profiles(job, tables, SIZES, multi_tensor=False)
    assert len(counted) == 3

    for profile in found:
        size = profile.batch_size_per_device
        if size not in counted:
            counting._COUNTED.clear()
            spec = job.spec.model_copy(
                update={"model": job.spec.model.model_copy(update={"batch_size_per_device": size})}
            )
            own = job.model_copy(update={"spec": spec})
            assert profile == dense_profile(own, tables, multi_tensor=False)


def test_both_sides_of_a_bend_are_on_their_lines() -> None:
    """Sizes between counts on one line are not counted; those around the bend are."""
    asked: list[int] = []

    def count(size: int) -> Counted:
        asked.append(size)
        return counted(size, max(10_000 + size, 100 * size))

    sizes = tuple(range(50, 1050, 50))
    found = counts_by_size(count, sizes)

    assert {size: each.profile.working_bytes for size, each in found.items()} == {
        size: max(10_000 + size, 100 * size) for size in sizes
    }
    assert len(asked) == len(sizes) / 2


def test_known_counts_are_not_counted_again() -> None:
    """As where the same model is asked for other sizes later."""
    known = {size: counted(size, 100 * size) for size in (64, 256)}
    asked: list[int] = []

    def count(size: int) -> Counted:
        asked.append(size)
        return counted(size, 100 * size)

    assert list(counts_by_size(count, (256, 64, 128, 192), known=known)) == [64, 128, 192, 256]
    assert asked == [192]


def counted(size: int, working_bytes: int) -> Counted:
    """Return a count at a batch size."""
    data = {**builders.dense_profile().model_dump(), "batch_size_per_device": size, "working_bytes": working_bytes}
    profile = DenseProfile.model_validate(data)
    return Counted(profile=profile, forward_working_bytes=0, kept_bytes=0, received_bytes=4 * size)


@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad"])
def test_tensors_on_the_meta_device_count_as_fake_ones(optimizer: str) -> None:
    """A job's model is counted on the meta device, any other model under fake tensors: the numbers are equal."""
    job = job_of()
    training = job.spec.training.model_copy(update={"dense_optimizer": DenseOptimizer(optimizer)})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
    settings, tables = job.spec.model, inline_tables(job)
    assert tables is not None
    size = settings.samples_per_device
    fake = describe_dense(
        lambda: RecommendationModel(settings, tables.tables),
        lambda: (torch.empty(size, settings.num_dense_features), None),
        tables=tables.tables,
        batch_size=size,
        optimizer=lambda weights: DENSE_OPTIMIZERS[training.dense_optimizer](weights, foreach=True),
        loss=lambda logits: mean_losses(logits, torch.empty(size)),
    )

    assert dense_profile(job, tables).model_copy(update={"signature": {}}) == fake

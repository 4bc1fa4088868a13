"""Sets of variants: which of them one job trains together, and that each keeps what it would have alone."""

import math
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.training_job import SWEEP_LABEL, VARIANT_ANNOTATION, DLRMTrainingJob
from neuroshard_api.job.variants import expanded as expanded_variants
from neuroshard_api.job.variants import inline_tables
from neuroshard_dlrm.variant_sets import sets_in, sets_of, single_jobs
from neuroshard_dlrm.variants import expanded
from support.builders import job_data

CROSS = {"numLayers": 2, "lowRankDim": 8}


def job_file(**spec: Any) -> JobFile:
    """Return a job as a file holds it."""
    document = job_data("shop", **spec)
    return JobFile(path=Path("job.yaml"), job=DLRMTrainingJob.from_data(document), document=document)


@pytest.mark.parametrize(
    "choices",
    [
        {"spec.training.denseLearningRate": ["0.001", "0.002"], "spec.training.gradientClipNorm": ["1", "2"]},
        {"spec.training.seed": [1, 2, 3]},
        {"spec.model.embeddingTables[*].embeddingDim": [16, 32], "spec.model.overArchLayerSizes": [[8], [4, 4]]},
        {"spec.model.crossNetwork.numLayers": [1, 3]},
        {"spec.training.denseOptimizer": ["Adam", "SGD"], "spec.training.denseLearningRate": ["0.1", "0.2"]},
        {"spec.training.gradientClipNorm": [None, "1"], "spec.model.crossNetwork": [None, {"numLayers": 1}]},
        {"spec.model": [{}, {"architecture": "DLRM", "crossNetwork": None}]},
        {"spec.training": [{}, {"seed": 1, "gradientClipNorm": None}, {"denseLearningRate": "0.3"}]},
    ],
)
def test_a_variant_of_a_set_is_the_job_that_it_would_be_alone(choices: dict[str, list[Any]]) -> None:
    """But for its name: model, training, and the seed of the samples; also where it unsets what the job says."""
    tables = job_data()["spec"]["model"]["embeddingTables"]
    file = job_file(
        model={"embeddingTables": tables, "architecture": "DCNv2", "crossNetwork": CROSS},
        training={"gradientClipNorm": "5"},
    )
    variants = expanded(file, choices)

    for job in sets_of(file, variants, 1):
        together = expanded_variants(job.file.job)
        for number in job.variants:
            alone, name = variants[number].file.job.spec, job.variant_name(number)
            own = (job.file.job if name is None else together[name]).spec
            assert own.model == alone.model
            assert own.training == alone.training
            assert own.sample_seed == alone.sample_seed


def test_variants_are_together_with_those_that_they_may_be_with() -> None:
    """In their order; a field that a set has once parts them, and the largest set is as small as can be."""
    file = job_file()
    variants = expanded(
        file,
        {"spec.training.denseLearningRate": ["0.1", "0.2", "0.3"], "spec.training.denseOptimizer": ["Adam", "SGD"]},
    )

    assert [job.variants for job in sets_of(file, variants, 4)] == [(0, 2), (1, 3), (4,), (5,)]
    assert [job.variants for job in sets_of(file, variants, 1)] == [(0, 2, 4), (1, 3, 5)]


def test_a_set_is_one_job_of_the_sweep() -> None:
    """With the name of its first variant, and the settings of each in a line; alone, a variant is its own job."""
    file = job_file()
    variants = expanded(file, {"spec.training.seed": [1, 2, 3]})
    pair, single = sets_of(file, variants, 2)

    assert (pair.name, single) == ("shop-00", single_jobs(variants)[2])
    assert pair.file.job.metadata.labels[SWEEP_LABEL] == "shop"
    assert pair.file.job.metadata.annotations[VARIANT_ANNOTATION] == "seed=1\nseed=2"
    assert [each.name for each in pair.file.job.spec.variants or ()] == ["v00", "v01"]


def test_equal_sets_are_priced_as_one() -> None:
    """Their variants' numbers decide no price."""
    file = job_file()
    first, second = sets_of(file, expanded(file, {"spec.training.seed": [1, 2, 3, 4]}), 2)

    def tables_of(found: JobFile) -> tuple[Table, ...]:
        tables = inline_tables(found.job)
        assert tables is not None
        return tables.tables

    assert tables_of(first.file) != tables_of(second.file)
    assert tables_of(first.priced) == tables_of(second.priced)


@pytest.mark.parametrize("count", [2, 6, 9])
def test_every_number_of_jobs_is_tried(count: int) -> None:
    """With sets of nearly equal sizes: nine variants on eight devices may be a pair and seven alone."""
    file = job_file()
    variants = expanded(file, {"spec.training.seed": list(range(count))})

    found, _ = sets_in(file, variants)

    assert [len(jobs) for jobs in found] == list(range(count - 1, 0, -1))
    for jobs in found:
        sizes = [len(job.variants) for job in jobs]
        assert sum(sizes) == count
        assert max(sizes) == math.ceil(count / len(jobs))
        assert min(sizes) > 0


def test_why_no_two_variants_train_together_is_told() -> None:
    """By the fields in which all differ."""
    file = job_file()
    variants = expanded(file, {"spec.training.denseOptimizer": ["Adam", "SGD"]})

    found, why = sets_in(file, variants)

    assert found == ()
    assert why == "no two are alike in spec.training.denseOptimizer, which all variants of a trainer share"


def test_a_job_that_trains_no_variants_together_has_no_sets() -> None:
    """By the rule of the job's own field."""
    file = job_file(training={"communication": {"policy": "Auto"}})
    variants = expanded(file, {"spec.training.seed": [1, 2]})

    with pytest.raises(DocumentError, match="the guard of narrow types watches one model"):
        sets_of(file, variants, 1)

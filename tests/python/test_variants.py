"""Variants of a job: every combination of values, each a whole job that differs in nothing else."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.variants import WIDTHS, expanded, parse_choices
from support.builders import job_data

RATE = "spec.training.denseLearningRate"


def job_file(name: str = "shop", **spec: Any) -> JobFile:
    """Return a job as a file holds it."""
    document = job_data(name, **spec)
    return JobFile(path=Path("job.yaml"), job=DLRMTrainingJob.from_data(document), document=document)


def differences(first: Any, second: Any, place: str = "") -> set[str]:
    """Return the paths at which two documents differ."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return set() if first == second else {place}
    names = {*first, *second}
    return {path for name in names for path in differences(first.get(name), second.get(name), f"{place}.{name}")}


def test_every_combination_is_a_job_that_differs_in_its_settings_alone() -> None:
    """Name, label, and annotation tell the variant; the job itself stays as it was."""
    file = job_file(training={"seed": 5})
    before = dict(file.document)
    found = expanded(file, parse_choices([f"{RATE}=0.001,1e-4,2", "model.overArchLayerSizes=[8],[16,8]"]))

    assert [each.name for each in found] == [f"shop-{number:02}" for number in range(6)]
    assert [each.text for each in found[:3]] == [
        "denseLearningRate=0.001, overArchLayerSizes=[8]",
        "denseLearningRate=0.001, overArchLayerSizes=[16,8]",
        "denseLearningRate=1e-4, overArchLayerSizes=[8]",
    ]
    assert found[5].file.job.spec.model.over_arch_layer_sizes == (16, 8)
    assert found[5].file.job.spec.training.dense_learning_rate == 2
    assert found[0].file.job.metadata.labels == {"training.neuroshard.dev/sweep": "shop"}
    assert found[0].file.job.metadata.annotations == {"training.neuroshard.dev/variant": found[0].text}
    for each in found:
        assert differences(before, each.file.document) <= {
            ".metadata.name",
            ".metadata.labels",
            ".metadata.annotations",
            ".spec.model.overArchLayerSizes",
            ".spec.training.denseLearningRate",
        }
    assert file.document == before == job_data("shop", training={"seed": 5})


def test_a_mapping_sets_several_fields_at_once() -> None:
    """So that values may go together, over what the job says."""
    file = job_file(model={**job_data()["spec"]["model"], "architecture": "DCNv2", "crossNetwork": {"numLayers": 2}})
    choices = parse_choices(
        [
            "spec={training: {seed: 1}, model: {crossNetwork: {lowRankDim: 8}}},{training: {seed: 2}}",
        ]
    )
    found = expanded(file, choices)

    assert [each.text for each in found] == ["seed=1, lowRankDim=8", "seed=2"]
    assert found[0].file.job.spec.model.cross.num_layers == 2
    assert found[0].file.job.spec.model.cross.low_rank_dim == 8


def test_all_tables_of_a_variant_have_its_columns() -> None:
    """The width of embeddings is a field of each table."""
    found = expanded(job_file(), {WIDTHS: [32, 64]})

    tables = [each.file.job.spec.model.embedding_tables or () for each in found]
    assert [[table.embedding_dim for table in each] for each in tables] == [[32, 32], [64, 64]]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([RATE], f"--set: '{RATE}' has no values; hint: write FIELD=VALUE,VALUE"),
        ([f"{RATE}="], f"--set {RATE}: has no values; hint: give at least two"),
        ([f"{RATE}=1,2", f"{RATE}=3"], f"--set: {RATE} is given twice; hint: give all its values in one --set"),
        ([f"{RATE}=0.1,0.10"], f"--set {RATE}: has 0.1 twice; hint: leave one out"),
        ([f"{RATE}=0.001,1e-3"], f"--set {RATE}: has 1e-3 twice; hint: leave one out"),
        (["spec.model.overArchLayerSizes=[8,[4"], "--set spec.model.overArchLayerSizes: is not valid YAML"),
        ([f"{RATE}=1"], "--set: makes one variant alone; hint: give a field at least two values"),
        ([f"spec.training.seed={','.join(map(str, range(33)))}"], "makes 33 variants, and a sweep has at most 32"),
        (["training.seeed=1,2"], "spec.training has no field 'seeed'; hint: did you mean spec.training.seed"),
        (["learningRate=1,2"], "'learningRate' is not a field of a job's spec; hint: write its whole path"),
        (["spec.model.batchSizePerDevice=8,16"], "--set spec.model.batchSizePerDevice: is the same in all variants"),
        (["spec.data.path=a,b"], "--set spec.data.path: is the same in all variants, so that their metrics compare"),
        (["spec.training.epochs=1,2"], "--set spec.training.epochs: is the same in all variants"),
        (["spec.model.embeddingTables=[],[]"], "--set spec.model.embeddingTables: has [] twice"),
        (["spec.model.embeddingTables=[],[1]"], f"the same in all variants but for their columns; hint: {WIDTHS}"),
        (["spec.training={seed: 1},{seed: 2}", "spec.training.seed=3,4"], "spec.training.seed is set twice"),
        (["spec={training: {seed: 1}},{training: {seed: 1.5}}"], "spec.training.seed"),
        ([f"{RATE}=0.1,-1"], f"job.yaml with denseLearningRate=-1: {RATE}: "),
        ([f"{RATE}=0.1,.nan"], f"job.yaml with denseLearningRate=nan: {RATE}: "),
        ([f"{RATE}=nan,.nan"], f"--set {RATE}: has nan twice; hint: leave one out"),
        ([f"{RATE}=snan,2"], f"job.yaml with denseLearningRate=snan: {RATE}: "),
        (["training.seed=2026-01-02,1"], 'job.yaml with seed="2026-01-02": spec.training.seed: '),
        ([f"{WIDTHS}=32,33"], "spec.model.embeddingTables[0].embeddingDim: "),
        (["spec.model.crossNetwork.numLayers=1,2"], "crossNetwork is for the architecture DCNv2 only"),
    ],
)
def test_what_makes_no_sweep_is_refused_by_its_field(texts: list[str], words: str) -> None:
    """With what was found, and what to do."""
    with pytest.raises((CommandError, DocumentError), match=re.escape(words)):
        expanded(job_file(), parse_choices(texts))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spec={training: {seed: 1}},{training: {seed: 2}},{training: {seed: 1}, model: {}}", "seed=1 and seed=1"),
        ("training={},{seed: 0},{seed: 1}", "the job as it is and seed=0"),
    ],
)
def test_variants_that_are_equal_are_refused(text: str, words: str) -> None:
    """Mappings can set the same fields in two ways, and a field to what the job has."""
    with pytest.raises(CommandError, match=f"makes one variant twice: {words}; hint: leave one out"):
        expanded(job_file(), parse_choices([text]))


def test_the_job_as_it_is_may_be_a_variant() -> None:
    """By an empty mapping."""
    found = expanded(job_file(), parse_choices(["training={},{seed: 1}"]))

    assert [each.text for each in found] == ["the job as it is", "seed=1"]


def test_a_name_without_room_for_a_number_is_refused() -> None:
    """Names of pods are made of the job's."""
    with pytest.raises(CommandError, match=r"metadata.name: leaves no room .* hint: shorten it to 41"):
        expanded(job_file("a" * 42), {RATE: ["1", "2"]})

    assert len(expanded(job_file("a" * 41), {RATE: ["1", "2"]})[1].name) == 44


def test_tables_of_a_file_have_no_columns_to_vary() -> None:
    """They are not in the job."""
    file = job_file(model={"embeddingTablesFrom": {"file": "tables.csv"}})

    with pytest.raises(CommandError, match="are in embeddingTablesFrom; hint: write them into"):
        expanded(file, {WIDTHS: [32, 64]})

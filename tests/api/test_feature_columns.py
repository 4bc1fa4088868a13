"""Specification of the one check that no feature is another column of the data."""

from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.documents.topology import Topology
from neuroshard_api.job.feature_columns import require_feature_columns
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.training_job import DLRMTrainingJob
from support import builders

PARQUET = {"format": "Parquet", "path": "clicks"}
LOG = {**PARQUET, "labelColumn": "clicked", "sessionColumn": "visit", "timeColumn": "at", "denseColumns": ["price"]}

CSV = {"format": "CSV", "path": "clicks.csv", "labelColumn": "clicked"}


def problem_of(*tables: dict[str, Any], **data: Any) -> str:
    """Return the message with which a job of these tables and this data is refused; empty: it is read."""
    own = [{"numEmbeddings": 8, "embeddingDim": 4} | table for table in tables]
    model = {"embeddingTables": own, "numDenseFeatures": 2}
    try:
        DLRMTrainingJob.from_data(builders.job_data(model=model, data=data), where="job.yaml")
    except DocumentError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "data", "use"),
    [
        ("label", PARQUET, "the label (the default of spec.data.labelColumn)"),
        ("dense_1", PARQUET, "a dense feature (the default of spec.data.denseColumns)"),
        ("clicked", LOG, "the label (spec.data.labelColumn)"),
        ("price", LOG, "a dense feature (spec.data.denseColumns[0])"),
        ("visit", LOG, "the session (spec.data.sessionColumn)"),
        ("at", LOG, "the time (spec.data.timeColumn)"),
        ("clicked", CSV, "the label (spec.data.labelColumn)"),
        ("dense_1", CSV, "a dense feature (the default of spec.data.denseColumns)"),
        ("label", {"format": "NPZ", "path": "a.npz"}, "the label (the default of spec.data.labelColumn)"),
        (
            "clicked",
            {"format": "NPZ", "path": "a.npz", "labelColumn": "clicked.values"},
            "the label (spec.data.labelColumn)",
        ),
        ("dense", {"format": "NPZ", "path": "a.npz"}, "the array of the dense features"),
        ("label", {"format": "CriteoTSV", "path": "day"}, "the label (the default of spec.data.labelColumn)"),
        ("int_3", {"format": "CriteoBinary", "path": "day"}, "a dense feature of Criteo's data"),
        ("int_12", {"format": "CriteoMultiHot", "path": "day"}, "a dense feature of Criteo's data"),
        ("rating", {"format": "MovieLens100K", "path": "m"}, "the rating, of which the label is made"),
        ("label", {"format": "Dataset", "dataset": "a:B"}, "the label (the default of spec.data.labelColumn)"),
    ],
)
def test_a_feature_that_is_another_column_is_refused(name: str, data: dict[str, Any], use: str) -> None:
    """For each format, with the path of the field that names it, and the field that gives the column its use."""
    expected = f"{name!r} is {use}, which no feature may be; hint: remove the feature and its table"

    assert f"spec.model.embeddingTables[1].name: {expected}" in problem_of({"name": "user"}, {"name": name}, **data)
    assert f"spec.model.embeddingTables[0].featureNames[1]: {expected}" in problem_of(
        {"name": "a", "featureNames": ["user", name]}, **data
    )


def test_a_table_may_have_the_name_of_a_column_that_it_does_not_look_up() -> None:
    """Its features are what is read; and made-up samples have no columns."""
    assert problem_of({"name": "label", "featureNames": ["user"]}, **PARQUET) == ""
    assert problem_of({"name": "dense_2"}, **PARQUET) == ""
    assert problem_of({"name": "label"}) == ""


def test_the_label_is_not_a_dense_feature() -> None:
    """The model would read it as a number."""
    data = {**LOG, "denseColumns": ["price", "clicked"]}

    assert problem_of({"name": "user"}, **data).startswith(
        "job.yaml: spec.data.denseColumns[1]: 'clicked' is the label (spec.data.labelColumn), which the model may not"
    )


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"sessionColumn": "clicked"}, "spec.data.sessionColumn: 'clicked' is the label, too; hint: name another"),
        ({"sessionColumn": "visit", "timeColumn": "clicked"}, "spec.data.timeColumn: 'clicked' is the label, too"),
        ({"sessionColumn": "visit", "timeColumn": "visit"}, "spec.data.timeColumn: 'visit' is the session, too"),
    ],
)
def test_label_session_and_time_are_three_columns(columns: dict[str, str], problem: str) -> None:
    """None of them can be one of the others."""
    assert problem in problem_of({"name": "user"}, **{**LOG, "sessionColumn": None, "timeColumn": None, **columns})


def test_tables_of_a_config_map_are_checked_before_they_are_planned() -> None:
    """With the field of the table set."""
    reference = {"embeddingTablesFrom": {"configMapKeyRef": {"name": "tables", "key": "tables.json"}}}
    job = builders.job(model=reference, data=LOG)
    tables = TableSet(tables=(builders.table("user"), builders.table("a", feature_names=("b", "clicked"))))
    topology: Topology = builders.request(num_devices=1).topology

    with pytest.raises(DocumentError, match=r"job: tables\[1\]\.feature_names\[1\]: 'clicked' is the label"):
        plan_request(job, tables=tables, topology=topology)
    with pytest.raises(DocumentError, match=r"maps: tables\[1\]"):
        require_feature_columns(job.spec.model, job.spec.data, tables, where="maps")


def test_a_stored_job_that_breaks_it_is_served() -> None:
    """A release before this check let it in: it gets no new plan, and its workers stay."""
    table = {"name": "label", "numEmbeddings": 2, "embeddingDim": 4}
    data = builders.job_data(model={"embeddingTables": [table]}, data=PARQUET)

    (broken,) = DLRMTrainingJob.from_stored_data(data).broken_rules

    assert broken.startswith("spec.model.embeddingTables[0].name: 'label' is the label")

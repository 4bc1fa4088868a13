"""From spec.data to samples."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.document import validated
from neuroshard_api.job.training import Data
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.files import DataFile, matching_files
from neuroshard_trainer.data.formats import open_source
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.source import SampleSource
from support import builders


def opened(folder: Path, num_dense: int = 2, **fields: Any) -> SampleSource:
    """Open the samples that these keys of spec.data describe."""
    tables = builders.table_set(builders.table("user"))
    data = validated(Data, fields, where="spec.data")
    return open_source(
        data, tables, features_of(tables.tables), num_dense=num_dense, seed=0, root=folder, spare=folder / "spare"
    )


def test_files_are_found_by_name_folder_and_pattern(tmp_path: Path) -> None:
    """In the order of their names; other files of a folder do not count."""
    for name in ("b.tsv", "a.tsv", "README"):
        (tmp_path / name).touch()
    both = (DataFile(str(tmp_path / "a.tsv")), DataFile(str(tmp_path / "b.tsv")))

    assert matching_files("a.tsv", tmp_path, suffixes=(".tsv",)) == both[:1]
    assert matching_files(".", tmp_path, suffixes=(".tsv",)) == both
    assert matching_files("*.tsv", tmp_path, suffixes=()) == both
    assert matching_files(str(tmp_path / "?.tsv"), Path("elsewhere"), suffixes=()) == both


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"format": "CriteoTSV", "path": "day_9"}, r"day_9 does not exist, and no file matches it"),
        ({"format": "Parquet", "path": "."}, r"has no file that ends in .parquet"),
        ({"format": "MovieLens100K", "path": "ml.whl"}, r"ml.whl does not exist"),
        ({"format": "MovieLens100K", "path": "."}, r"has no feature 'user'.*it has user_id, age"),
    ],
    ids=["missing file", "empty folder", "missing wheel", "unknown feature"],
)
def test_data_that_is_not_there_is_named(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    """The sentence has the whole path."""
    with pytest.raises(DataError, match=expected):
        opened(tmp_path, **fields)


def test_features_that_are_constant_in_a_session_are_features_of_the_model(tmp_path: Path) -> None:
    """Another name is refused before a row is read."""
    (tmp_path / "x.parquet").touch()

    with pytest.raises(DataError) as error:
        opened(
            tmp_path, format="Parquet", path="x.parquet", sessionColumn="visit", constantInSession=["user", "history"]
        )

    assert "spec.data.constantInSession[1]: no table looks up 'history' (found user)" in str(error.value)


def test_dense_columns_fit_the_model(tmp_path: Path) -> None:
    """Their number is numDenseFeatures."""
    (tmp_path / "x.parquet").touch()

    with pytest.raises(DataError, match=r"names 1 columns, spec.model.numDenseFeatures is 2"):
        opened(tmp_path, format="Parquet", path="x.parquet", denseColumns=["age"])


def test_synthetic_samples_need_no_files(tmp_path: Path) -> None:
    """Their number is the job's."""
    assert sum(opened(tmp_path, numSamples=5000).block_sizes) == 5000

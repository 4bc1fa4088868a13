"""MovieLens-100K in RecBole's form, from a wheel and from a folder."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.movielens import MovieLensSource
from neuroshard_trainer.data.samples import features_of
from support import builders
from support.trainer.data_builders import MOVIELENS_FILES

TABLES = tuple(builders.table(name) for name in ("user_id", "gender", "item_id", "release_year", "genre", "title_word"))


def folder_with(folder: Path, **changes: str) -> Path:
    """Write the files, some of them with other text (``inter=...``)."""
    for name, text in MOVIELENS_FILES.items():
        (folder / name).write_text(changes.get(name.removeprefix("ml-100k."), text))
    return folder


def wheel_with(folder: Path) -> Path:
    """Write a wheel like RecBole's."""
    wheel = folder / "recbole-1.2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in MOVIELENS_FILES.items():
            archive.writestr(f"recbole/dataset_example/ml-100k/{name}", text)
    return wheel


@pytest.mark.parametrize("place", [folder_with, wheel_with], ids=["folder", "wheel"])
def test_ratings_become_samples(tmp_path: Path, place: object) -> None:
    """Four stars are liked; users, movies and words are numbered as they first occur in their files."""
    assert callable(place)
    made = MovieLensSource(place(tmp_path), features_of(TABLES), num_dense=2)
    samples = made.take(0, np.arange(3))

    assert made.block_sizes == (3,)
    assert samples.labels.tolist() == [1, 0, 1]
    assert samples.lookups["user_id"].values.tolist() == [1, 0, 1]
    assert samples.lookups["gender"].values.tolist() == [1, 0, 1]
    assert samples.lookups["genre"].lengths.tolist() == [2, 1, 1]
    assert samples.lookups["genre"].values.tolist() == [0, 1, 2, 2]
    assert samples.lookups["release_year"].lengths.tolist() == [1, 0, 0]
    np.testing.assert_allclose(samples.dense[:, 0], [0.53, 0.24, 0.53], rtol=1e-6)
    assert made.place(0, 2) == f"{tmp_path if place is folder_with else wheel_with(tmp_path)}: ml-100k.inter line 4"


@pytest.mark.parametrize(
    ("inter", "expected"),
    [
        (MOVIELENS_FILES["ml-100k.inter"] + "2\t7\tgood\t1\n", "line 5: 'good' is not a number"),
        (MOVIELENS_FILES["ml-100k.inter"] + "3\t7\t4\t1\n", "line 5: user_id:token '3' is not in the data set"),
        (MOVIELENS_FILES["ml-100k.inter"] + "3\t7\n", "line 5: has not as many columns"),
        ("", "has no rows"),
    ],
    ids=["rating", "user", "columns", "empty"],
)
def test_a_broken_line_is_named(tmp_path: Path, inter: str, expected: str) -> None:
    """With its number, header included."""
    with pytest.raises(DataError, match=expected):
        MovieLensSource(folder_with(tmp_path, inter=inter), features_of(TABLES), num_dense=2)


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    """The sentence says how to get one."""
    (tmp_path / "recbole.whl").write_text("no zip")

    with pytest.raises(DataError, match="pip download --no-deps recbole"):
        MovieLensSource(tmp_path / "recbole.whl", features_of(TABLES), num_dense=2)


def test_another_number_of_dense_features_is_refused(tmp_path: Path) -> None:
    """The model would be built for what is not there."""
    with pytest.raises(DataError, match="numDenseFeatures: is 13, MovieLens-100K has 2"):
        MovieLensSource(folder_with(tmp_path), features_of(TABLES), num_dense=13)

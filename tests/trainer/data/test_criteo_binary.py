"""Criteo's arrays, whole and broken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.criteo_binary import CriteoBinarySource
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.source import BLOCK_SAMPLES
from support import builders
from support.trainer.data_builders import CRITEO_TABLES, criteo_arrays

FEATURES = features_of(CRITEO_TABLES)


def source(*files: DataFile, multi_hot: bool = False) -> CriteoBinarySource:
    """Return the samples of some days."""
    return CriteoBinarySource(files, FEATURES, num_dense=13, multi_hot=multi_hot)


def test_samples_are_taken_by_rows_over_days_and_blocks(tmp_path: Path) -> None:
    """Each has its own dense features, label and lookups, modulo the rows of the table."""
    made = source(criteo_arrays(tmp_path, BLOCK_SAMPLES + 3), criteo_arrays(tmp_path, 5, day="day_1"))

    assert made.block_sizes.tolist() == [BLOCK_SAMPLES, 3, 5]
    second = made.take(1, np.array([2, 0]))
    assert second.dense[:, 12].tolist() == [BLOCK_SAMPLES + 2, BLOCK_SAMPLES]
    assert second.labels.tolist() == [0, 0]
    assert second.lookups["cat_7"].values.tolist() == [(BLOCK_SAMPLES + 2) % 100, BLOCK_SAMPLES % 100]
    assert made.take(2, np.array([4])).lookups["cat_25"].values.tolist() == [4]
    assert made.place(2, 4).endswith("day_1 row 4")


def test_hashes_may_be_stored_as_negative_numbers(tmp_path: Path) -> None:
    """They are taken modulo the rows as torchrec's numpy does, so that ids are not negative."""
    file = criteo_arrays(tmp_path, 2)
    np.save(tmp_path / "day_0_sparse.npy", np.full((2, 26), -7, dtype=np.int32))

    assert source(file).take(0, np.array([0])).lookups["cat_0"].values.tolist() == [-7 % 100]


def test_the_multi_hot_variant_has_several_lookups(tmp_path: Path) -> None:
    """As many of each feature as its array has columns."""
    hots = [3, 1, *[2] * 24]
    taken = source(criteo_arrays(tmp_path, 10, hots=hots), multi_hot=True).take(0, np.array([7, 2]))

    assert [jagged.lengths.tolist() for jagged in taken.lookups.values()] == [[hot, hot] for hot in hots]
    assert taken.lookups["cat_0"].values.tolist() == [7, 7, 7, 2, 2, 2]


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("dense", np.zeros((10, 12), dtype=np.float32), r"dense.npy: is float32\[10, 12\], expected floating .*10, 13"),
        ("dense", np.zeros((10, 13), dtype=np.int32), r"dense.npy: is int32\[10, 13\], expected floating"),
        (
            "sparse",
            np.zeros((9, 26), dtype=np.int32),
            r"sparse.npy: is int32\[9, 26\].*\[10, 26\].*many samples as labels",
        ),
        ("sparse", np.zeros((10, 26), dtype=np.float32), r"sparse.npy: is float32.*expected integer"),
        ("labels", np.zeros((10, 2), dtype=np.int32), r"labels.npy: is int32\[10, 2\]"),
        ("labels", np.array([{}] * 10), r"labels.npy: holds Python objects"),
        ("dense", np.asfortranarray(np.zeros((10, 13), dtype=np.float32)), r"dense.npy: holds columns one after"),
    ],
    ids=["columns", "dense type", "samples", "sparse type", "label shape", "objects", "order"],
)
def test_an_array_of_another_kind_is_refused(tmp_path: Path, name: str, array: Any, expected: str) -> None:
    """With its type and shape, and those that were expected."""
    file = criteo_arrays(tmp_path)
    np.save(tmp_path / f"day_0_{name}.npy", array)

    with pytest.raises(DataError, match=expected):
        source(file)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("day_0_sparse.npy", None, "day_0_sparse.npy: does not exist; a day has"),
        ("day_0_sparse.npy", b"nothing of the kind", "is not an array of NumPy"),
        ("day_0_dense.npy", b"", "is not an array of NumPy"),
    ],
    ids=["missing", "text", "empty"],
)
def test_a_file_that_is_no_array_is_refused(tmp_path: Path, name: str, content: bytes | None, expected: str) -> None:
    """By its path."""
    file = criteo_arrays(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=expected):
        source(file)


@pytest.mark.parametrize("multi_hot", [False, True])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, *, multi_hot: bool) -> None:
    """Before training, not at the sample that lacks."""
    file = criteo_arrays(tmp_path)
    path = tmp_path / ("day_0_sparse_multi_hot.npz" if multi_hot else "day_0_sparse.npy")
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(DataError, match=r"cut off.*copy it again"):
        source(file, multi_hot=multi_hot)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({str(index): np.zeros((10, 1), dtype=np.int32) for index in range(25)}, "has no array '25'"),
        ({str(index): np.zeros((10 + index // 25, 1), dtype=np.int32) for index in range(26)}, r"is int32\[11, 1\]"),
        ({str(index): np.zeros((10, 1)) for index in range(26)}, "is float64.*expected integer"),
    ],
    ids=["missing", "samples", "type"],
)
def test_a_multi_hot_array_of_another_kind_is_refused(tmp_path: Path, arrays: dict[str, Any], expected: str) -> None:
    """With its name."""
    file = criteo_arrays(tmp_path)
    np.savez(tmp_path / "day_0_sparse_multi_hot.npz", **arrays)

    with pytest.raises(DataError, match=expected):
        source(file, multi_hot=True)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    """It cannot be mapped into memory, and the sentence says how to write one that can."""
    file = criteo_arrays(tmp_path)
    np.savez_compressed(
        tmp_path / "day_0_sparse_multi_hot.npz",
        **{str(index): np.zeros((10, 1), dtype=np.int32) for index in range(26)},  # type: ignore[arg-type]
    )

    with pytest.raises(DataError, match=r"array '0' is compressed; hint: write it with numpy.savez"):
        source(file, multi_hot=True)


def test_other_features_are_refused(tmp_path: Path) -> None:
    """As in the text format."""
    with pytest.raises(DataError, match=r"has no feature 'user'"):
        CriteoBinarySource(
            [criteo_arrays(tmp_path)], features_of((builders.table("user"),)), num_dense=13, multi_hot=False
        )


def test_a_folder_without_arrays_is_refused(tmp_path: Path) -> None:
    """The sentence says what names they have."""
    with pytest.raises(DataError, match=r"no name ends in _dense.npy"):
        source(DataFile(str(tmp_path / "day_0.tsv")))


def test_arrays_behind_a_url_are_refused() -> None:
    """They cannot be mapped into memory."""
    with pytest.raises(DataError, match=r"memory://x_dense.npy: is mapped into memory, which a URL cannot be"):
        source(DataFile("memory://x_dense.npy"))

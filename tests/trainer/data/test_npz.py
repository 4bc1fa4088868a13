"""NPZ files, whole and broken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.npz import NpzSource
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.source import BLOCK_SAMPLES
from support import builders
from support.trainer.data_builders import npz_arrays

TABLES = (builders.table("user", num_embeddings=10), builders.table("item", num_embeddings=10))


def source(folder: Path, count: int = 10, **arrays: Any) -> NpzSource:
    """Return a file of samples that look up their own number, with other arrays where they are given."""
    given = {name.replace("__", "."): array for name, array in arrays.items()}
    made = {**npz_arrays(count, ("user", "item"), num_dense=2), **given}
    np.savez(folder / "part.npz", **{name: array for name, array in made.items() if array is not None})
    return NpzSource([DataFile(str(folder / "part.npz"))], features_of(TABLES), num_dense=2, label="label")


def test_samples_are_taken_over_blocks(tmp_path: Path) -> None:
    """Each with its own lookups, however many there are before it."""
    made = source(tmp_path, BLOCK_SAMPLES + 6)
    taken = made.take(1, np.array([4, 1]))

    first, second = BLOCK_SAMPLES + 4, BLOCK_SAMPLES + 1
    assert made.block_sizes.tolist() == [BLOCK_SAMPLES, 6]
    assert taken.lookups["item"].lengths.tolist() == [first % 3, second % 3]
    assert taken.lookups["item"].values.tolist() == [first] * (first % 3) + [second] * (second % 3)
    assert taken.dense[:, 1].tolist() == [first, second]
    assert made.place(1, 4).endswith(f"part.npz sample {first}")


def test_a_model_without_dense_features_needs_no_array_of_them(tmp_path: Path) -> None:
    """An array of some is refused all the same, since the model would not read it."""
    lists: dict[str, Any] = {"user.values": np.arange(3), "user.lengths": np.ones(3, dtype=int)}
    file = DataFile(str(tmp_path / "ids.npz"))
    features = features_of([builders.table("user", num_embeddings=3)])
    np.savez(file.place, label=np.ones(3), **lists)

    assert NpzSource([file], features, num_dense=0, label="label").take(0, np.arange(3)).dense.shape == (3, 0)
    np.savez(file.place, label=np.ones(3), dense=np.ones((3, 2)), **lists)
    with pytest.raises(DataError, match=r"has the shape \[3, 2\], expected \[3, 0\]"):
        NpzSource([file], features, num_dense=0, label="label")


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"label": None}, r"has no array 'label' \(found dense, item.lengths"),
        ({"user__values": None}, "has no array 'user.values'"),
        ({"user__values": np.zeros(10)}, "is float64.*expected integer numbers in 1 dimension"),
        ({"user__lengths": np.ones(9, dtype=int)}, "has 9 entries, found 10 labels; hint: write one for each"),
        ({"user__lengths": np.full(10, -1)}, "entry 0 is -1; hint: write how many ids the sample has"),
        ({"user__lengths": np.full(10, 5)}, "sum to 50, 'user.values' holds 9 ids"),
        ({"dense": np.zeros((10, 3))}, r"has the shape \[10, 3\], expected \[10, 2\]"),
        ({"label": np.zeros(0, dtype=int)}, "is empty"),
    ],
    ids=["label", "values", "type", "count", "negative", "sum", "dense", "empty"],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, arrays: dict[str, Any], expected: str) -> None:
    """Each by its name."""
    with pytest.raises(DataError, match=expected):
        source(tmp_path, **arrays)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A sentence, not zipfile's error."""
    path = tmp_path / "part.npz"
    path.write_bytes(b"PK but no more")

    with pytest.raises(DataError, match=r"part.npz: is not a .npz file"):
        NpzSource([DataFile(str(path))], features_of(TABLES), num_dense=2, label="label")

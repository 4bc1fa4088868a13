"""Criteo's text files, whole and broken."""

from pathlib import Path

import numpy as np
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.criteo import CriteoSource
from neuroshard_trainer.data.criteo_lines import FEATURES
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.line_index import LINES_PER_BLOCK
from neuroshard_trainer.data.samples import features_of
from support import builders

TABLES = tuple(builders.table(name, num_embeddings=100) for name in FEATURES)


def line(number: int = 0, **cells: str) -> str:
    """Return a line whose first hash is its number; cells such as int_2 or cat_5 can be replaced."""
    names = ["label", *(f"int_{position}" for position in range(13)), *FEATURES]
    values = {name: "1" if name.startswith("int") else "0a" for name in names}
    values |= {"label": str(number % 2), "cat_0": f"{number:08x}", **cells}
    return "\t".join(values[name] for name in names)


def source(folder: Path, *lines: str, end: str = "\n") -> CriteoSource:
    """Return a file with these lines as samples."""
    file = folder / "day_0.tsv"
    file.write_text("\n".join(lines) + end)
    return CriteoSource([DataFile(str(file))], features_of(TABLES), num_dense=13, spare=folder / "spare")


def test_numbers_and_hashes_become_features(tmp_path: Path) -> None:
    """log(1 + x) of what is above 0, hashes modulo the rows, and nothing for what is missing."""
    samples = source(tmp_path, line(1, int_0="99", int_1="-2", int_2="", cat_1="ff", cat_2=""), line(2)).read(0)

    np.testing.assert_allclose(samples.dense[0, :3], [np.log(100), 0, 0], rtol=1e-6)
    assert samples.labels.tolist() == [1, 0]
    assert samples.lookups["cat_1"].values[0] == 0xFF % 100
    assert samples.lookups["cat_2"].lengths.tolist() == [0, 1]


@pytest.mark.parametrize("end", ["\n", ""], ids=["newline at the end", "none"])
@pytest.mark.parametrize("count", [1, LINES_PER_BLOCK, LINES_PER_BLOCK + 1])
def test_every_line_is_in_one_block(tmp_path: Path, count: int, end: str) -> None:
    """Blocks end at lines, whatever the file ends with."""
    made = source(tmp_path, *(line(number) for number in range(count)), end=end)

    found = np.concatenate([made.read(block).lookups["cat_0"].values for block in range(len(made.block_sizes))])

    assert sum(made.block_sizes) == count
    np.testing.assert_array_equal(found, np.arange(count) % 100)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (line(cat_3="xyz"), r"line 1027: column cat_3: expected a hexadecimal hash of at most 16 digits, found 'xyz'"),
        (line(int_4="many"), r"line 1027: column int_4: expected a number, found 'many'"),
        (line(label=""), r"line 1027: column label: expected 0 or 1, found ''"),
        (line().rsplit("\t", 2)[0], r"line 1027: has 38 columns, expected 40"),
        ("", r"line 1027: has 1 columns, expected 40"),
    ],
    ids=["hash", "integer", "no label", "cut off", "empty"],
)
def test_a_malformed_line_is_named(tmp_path: Path, broken: str, expected: str) -> None:
    """Its number counts from the beginning of the file, and the rest of the file does not matter."""
    made = source(tmp_path, *(line(number) for number in range(LINES_PER_BLOCK + 2)), broken, line())

    with pytest.raises(DataError, match=expected):
        made.read(1)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """There is nothing to train on."""
    with pytest.raises(DataError, match="is empty"):
        source(tmp_path, end="")


def test_another_feature_is_refused(tmp_path: Path) -> None:
    """The sentence names what there is."""
    with pytest.raises(DataError, match=r"has no feature 'user'.*cat_0, cat_1"):
        CriteoSource([], features_of((builders.table("user"),)), num_dense=13, spare=tmp_path)

"""Specification of the columns that are looked up, and of the questions that their values raise."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.data.data_set import DataSet
from neuroshard_profiler.data.statistics import data_statistics
from pyarrow import csv, parquet

RNG = np.random.default_rng(0)
COUNT = 2000


def log(folder: Path, name: str = "log.parquet", **columns: Any) -> Path:
    """Write a Parquet file of these columns."""
    parquet.write_table(pa.table(columns), folder / name)
    return folder / name


def opened(path: Path, **asked: Any) -> DataSet:
    """Open a data set with some of the options of `neuroshard stats`."""
    defaults: dict[str, Any] = {"data_format": None, "features": (), "session": None, "time": None}
    return DataSet.of(str(path), **defaults | asked)


def doubts(path: Path, **asked: Any) -> list[str]:
    """Return the questions about the columns that are looked up."""
    data = opened(path, **asked)
    found = data_statistics(
        data.batches(500), batch_size=500, ids_are_rows=True, has_label=data.columns.has_label
    ).features
    return [each.doubt for each in found if each.doubt is not None]


def test_label_session_time_and_dense_columns_are_not_features(tmp_path: Path) -> None:
    """Whatever their types; each column that is passed over has its reason."""
    path = log(
        tmp_path, clicked=[0, 1], visit=[7, 7], at=[1, 2], dense_0=[1, 2], item=[3, 4], seen=[[1], []],
        city=["a", "b"], price=[0.5, 1.5], day=pa.array([0, 1], pa.timestamp("us")),
    )  # fmt: skip
    columns = opened(path, label="clicked", session="visit", time="at").columns

    assert columns.features == ("item", "seen", "city")
    assert columns.has_label
    assert columns.passed_over == {
        "clicked": "the label",
        "visit": "the session",
        "at": "the time",
        "dense_0": "a dense feature by its name",
        "price": "double",
        "day": "timestamp[us]",
    }
    assert "visit: the session" in columns.passed_over_text
    assert opened(path, features=("dense_0",)).columns.features == ("dense_0",)


def test_the_label_of_a_job_that_names_none_is_not_a_feature(tmp_path: Path) -> None:
    """A job's default is the column `label`; where another one is named, it may be a feature."""
    path = log(tmp_path, label=[0, 1], clicked=[1, 0], item=[3, 4])

    assert opened(path).columns.features == ("clicked", "item")
    assert opened(path, label="clicked").columns.features == ("label", "item")
    assert opened(path, ignored=("clicked",)).columns.passed_over == {"label": "the label", "clicked": "ignored"}


def test_a_label_in_later_files_is_not_a_feature(tmp_path: Path) -> None:
    """The columns of the first file are read in all."""
    log(tmp_path, "0.parquet", clicked=[0], label=[3], item=[1])
    log(tmp_path, "1.parquet", clicked=[1], label=[4], item=[2])
    (batch,) = opened(tmp_path, label="clicked").batches(10)

    assert {name: each.ids.tolist() for name, each in batch.features.items()} == {"label": [3, 4], "item": [1, 2]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"label": "none"}, "column 'none': is missing; hint: choose among label, visit, at, item"),
        ({"ignored": ("none",)}, "column 'none': is missing"),
        ({"features": ("label",)}, "column 'label': is the label, which no feature may be; hint: leave --feature"),
        ({"features": ("visit",), "session": "visit"}, "is the session, .* or give --session the column"),
        ({"features": ("at",), "session": "visit", "time": "at"}, "column 'at': is the time"),
        ({"features": ("item",), "ignored": ("item",)}, "column 'item': is ignored"),
        (
            {"ignored": ("visit", "at", "item")},
            r"has no column of integers, .*found visit, at, item: ignored; label: the label",
        ),
    ],
)
def test_a_column_of_two_uses_is_refused(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    """Before any row is read."""
    path = log(tmp_path, label=[0], visit=[1], at=[2], item=[3])

    with pytest.raises(DataError, match=message):
        opened(path, **asked)


@pytest.mark.parametrize("label", [None, "clicked", "clicked.values"])
def test_the_label_of_an_archive_is_not_a_feature(tmp_path: Path, label: str | None) -> None:
    """As an array, and as the values of a feature of its name."""
    name = label or "label"
    arrays: dict[str, Any] = {f"{each}.{part}": [1, 1] for each in ("item", "x") for part in ("values", "lengths")}
    base = name.removesuffix(".values")
    arrays |= {f"{base}.values": [0, 1], f"{base}.lengths": [1, 1], name: [0, 1], "dense": np.zeros((2, 3))}
    np.savez(tmp_path / "log.npz", **arrays)
    columns = opened(tmp_path / "log.npz", label=label, ignored=("x",)).columns

    assert columns.features == ("item",)
    assert columns.passed_over["dense"] == "the dense features"
    assert columns.passed_over[f"{base}.values"] == columns.passed_over[name] == "the label"
    with pytest.raises(DataError, match=f"feature '{base}': is the label, which no feature may be"):
        opened(tmp_path / "log.npz", label=label, features=(base,))
    with pytest.raises(DataError, match="the array 'none' is missing"):
        opened(tmp_path / "log.npz", label="none")
    with pytest.raises(DataError, match="feature 'none': is missing"):
        opened(tmp_path / "log.npz", ignored=("none",))


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Neither is chosen by its place."""
    log = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["item", "item", "user"])
    parquet.write_table(log, tmp_path / "log.parquet")

    with pytest.raises(DataError, match="column item: is there 2 times; hint: rename one, or give --ignore item"):
        opened(tmp_path / "log.parquet")
    assert opened(tmp_path / "log.parquet", ignored=("item",)).columns.features == ("user",)


def test_the_label_of_a_csv_file_is_not_a_feature(tmp_path: Path) -> None:
    """Nor are dense columns by their names, fractions, and what is ignored."""
    path = tmp_path / "log.csv"
    path.write_text("clicked,item,city,price,dense_0,x\n0,3,a,0.5,1,2\n1,4,b,1.5,2,3\n", encoding="utf-8")
    columns = opened(path, label="clicked", ignored=("x",)).columns

    assert (columns.features, columns.has_label) == (("item", "city"), True)
    assert columns.passed_over == {
        "clicked": "the label",
        "price": "fractions",
        "dense_0": "a dense feature by its name",
        "x": "ignored",
    }
    with pytest.raises(DataError, match="column 'clicked': is the label, which no feature may be"):
        opened(path, label="clicked", features=("clicked",))


def test_criteos_labels_are_known(tmp_path: Path) -> None:
    """Its columns have no names."""
    (tmp_path / "day.tsv").write_text("\t".join(["1", *["5"] * 13, *["ff"] * 26]) + "\n", encoding="utf-8")

    assert opened(tmp_path / "day.tsv").columns.has_label
    with pytest.raises(DataError, match="no named columns; hint: leave --label out"):
        opened(tmp_path / "day.tsv", label="label")
    with pytest.raises(DataError, match="no named columns; hint: leave --ignore out"):
        opened(tmp_path / "day.tsv", ignored=("int_0",))


def ids(count: int = COUNT, rows: int = 100) -> Any:
    """Return ids of a small table."""
    return RNG.integers(0, rows, count)


def test_two_values_are_asked_about_until_the_label_is_known(tmp_path: Path) -> None:
    """Afterwards only what is named like a label: it may be known only after the label."""
    path = log(tmp_path, clicked=ids(rows=2), bought=ids(rows=2), phone=ids(rows=2), item=ids())

    assert doubts(path) == [
        "clicked: 2 values; is it the label? --label clicked",
        "bought: 2 values; is it the label? --label bought",
        "phone: 2 values; is it the label? --label phone",
    ]
    assert doubts(path, label="clicked") == [
        "bought: 2 values, named like a label; is it known only after the label? --ignore bought"
    ]
    assert doubts(path, label="clicked", ignored=("bought",)) == []


def csv_of(path: Path) -> Path:
    """Write a Parquet file again as CSV."""
    csv.write_csv(parquet.read_table(path), path.with_suffix(".csv"))
    return path.with_suffix(".csv")


@pytest.mark.parametrize("is_csv", [False, True], ids=["Parquet", "CSV"])
def test_texts_are_asked_about_like_integers(tmp_path: Path, *, is_csv: bool) -> None:
    """Two values, names of labels, and texts of which few repeat; texts do not rise, whatever their hashes do."""
    texts = {
        "clicked": np.array(["no", "yes"])[ids(rows=2)],
        "conversion": np.array(["a", "b", "c"])[ids(rows=3)],
        "visit": [f"visit {number}" for number in range(COUNT)],
        "city": np.array([f"city {number}" for number in range(100)])[ids()],
    }
    path = log(tmp_path, **texts)

    assert doubts(csv_of(path) if is_csv else path) == [
        "clicked: 2 values; is it the label? --label clicked",
        "conversion: named like a label; is it known only after the label? --ignore conversion",
        "visit: about 2,000 values in 2,000 samples, so that few repeat; is it a name of the sample? --ignore visit",
    ]


@pytest.mark.parametrize(
    ("values", "question"),
    [
        (np.arange(COUNT) // 3, "rises from sample to sample; is it a time or a running number?"),
        (np.tile(np.arange(COUNT // 4), 4), "rises from sample to sample"),
        (1_767_225_600 + ids(rows=86_400), "times from 2001 to 2035; is it a time?"),
        (1_767_225_600_000 + ids(rows=86_400_000), "times from 2001 to 2035; is it a time?"),
        (RNG.permutation(COUNT), "about 2,000 values in 2,000 samples, so that few repeat; is it a running number?"),
        (RNG.integers(0, 2**40, 20_000), "values in 20,000 samples, so that few repeat"),
        (ids(), ""),
        (ids(rows=COUNT), ""),
        (np.zeros(COUNT, dtype=int), ""),
        (np.arange(50), ""),
        ([[number] * (number % 3) for number in range(COUNT)], ""),
        ([None if number % 2 else 7 for number in range(COUNT)], ""),
    ],
    ids=[
        *("rising", "rising in each file", "seconds", "milliseconds", "permutation", "hashes"),
        *("few rows", "many rows", "constant", "few samples", "lists", "nulls"),
    ],
)
def test_values_unlike_ids_are_asked_about(tmp_path: Path, values: Any, question: str) -> None:
    """A table of times or running numbers learns nothing of later samples; those of CSV are texts."""
    path = log(tmp_path, label=np.zeros(len(values), dtype=int), column=values)
    files = [path] if isinstance(values, list) else [path, csv_of(path)]

    for found in map(doubts, files):
        assert [each.partition(": ")[2] for each in found] == ([] if not question else [found[0].partition(": ")[2]])
        assert question in "".join(found)
        assert all(each.endswith(" --ignore column") for each in found)

"""Parquet files, whole and broken."""

import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.distinct_lists import stored_schema, without_repeats
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.id_rules import rows_of_integers, rows_of_texts
from neuroshard_trainer.data.missing import kept_means
from neuroshard_trainer.data.parquet import ParquetSource
from neuroshard_trainer.data.parquet_statistics import repeated_texts
from neuroshard_trainer.data.samples import SharedLists, features_of
from support import builders

TABLES = (builders.table("user", num_embeddings=10), builders.table("words", num_embeddings=10))
COLUMNS = {
    "label": [0, 1, 1, 0],
    "age": [0.5, 1.5, 2.5, 3.5],
    "user": [4, None, 6, 7],
    "words": [[1, 2], [], None, [3, None, 5]],
}


def source(
    folder: Path,
    row_group_size: int = 3,
    *,
    session: str | None = None,
    time: str | None = None,
    constant: Sequence[str] = (),
    missing: Missing = Missing.ERROR,
    **columns: Any,
) -> ParquetSource:
    """Return a file of four rows as samples."""
    file = folder / "part.parquet"
    pq.write_table(pa.table({**COLUMNS, **columns}), file, row_group_size=row_group_size)
    return ParquetSource(
        [DataFile(str(file))],
        features_of(TABLES),
        label_column="label",
        dense_columns=["age"],
        missing=missing,
        session_column=session,
        time_column=time,
        constant=constant,
    )


def test_lists_and_numbers_are_lookups(tmp_path: Path) -> None:
    """A null looks nothing up, in a list or in place of it."""
    made = source(tmp_path)
    first, second = made.read(0), made.read(1)

    assert made.block_sizes == (3, 1)
    assert first.lookups["user"].values.tolist() == [4, 6]
    assert first.lookups["user"].lengths.tolist() == [1, 0, 1]
    assert first.lookups["words"].lengths.tolist() == [2, 0, 0]
    assert second.lookups["words"].values.tolist() == [3, 5]
    np.testing.assert_array_equal(first.dense, np.array([[0.5], [1.5], [2.5]], dtype=np.float32))
    assert second.labels.tolist() == [0]


def test_a_files_metadata_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each process: a copy in a reader process reads it again, and then the same samples."""
    without_metadata: list[bool] = []
    real = pq.ParquetFile

    def opened(file: str, metadata: pq.FileMetaData | None = None, **options: Any) -> pq.ParquetFile:
        without_metadata.append(metadata is None)
        return real(file, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", opened)
    made = source(tmp_path, row_group_size=1)
    samples = [made.read(block) for block in range(4)]
    assert sum(without_metadata) == 1

    copy = pickle.loads(pickle.dumps(made))  # noqa: S301 - made above
    assert [copy.read(block).labels.tolist() for block in range(4)] == [each.labels.tolist() for each in samples]
    assert sum(without_metadata) == 2


def test_lookups_without_a_null_are_one_per_sample(tmp_path: Path) -> None:
    """The usual column of hashed ids."""
    lookups = source(tmp_path, user=[4, 5, 6, 7]).read(0).lookups["user"]

    assert (lookups.values.tolist(), lookups.lengths.tolist()) == ([4, 5, 6], [1, 1, 1])
    assert lookups.values.dtype == np.int64


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"user": [0.5] * 4}, "column user: is of type double, expected an integer, a text, or a list of them"),
        ({"user": ["a"] * 4}, "column user: holds texts, .* id rule Exact, .*hint: set idRule: Hash for the table"),
        ({"words": [["a"]] * 4}, "column words: holds texts, and table 'words'"),
        ({"age": [["x"]] * 4}, "column age: is of type list.*expected a number"),
    ],
    ids=["number", "text", "list of texts", "list"],
)
def test_a_column_of_another_type_is_refused(tmp_path: Path, columns: dict[str, Any], expected: str) -> None:
    """Before training, with the column's name."""
    with pytest.raises(DataError, match=expected):
        source(tmp_path, **columns)


@pytest.mark.parametrize("encoded", [True, False], ids=["dictionary", "plain"])
def test_texts_and_negative_ids_are_hashed_to_rows(tmp_path: Path, *, encoded: bool) -> None:
    """The same rows in all row groups and for every way in which a column is stored."""
    file = tmp_path / "part.parquet"
    users, tags = pa.array(["a", "ü", None, "a"]), pa.array([[-1, 2**62], None, [], [-1]])
    structs = pa.array([{"x": 1, "y": 2}] * 4)  # stored as two columns, before those that are read
    columns = {**COLUMNS, "user": users.dictionary_encode() if encoded else users, "words": tags}
    pq.write_table(pa.table({"struct": structs, **columns}), file, row_group_size=3)
    tables = [table.model_copy(update={"id_rule": IdRule.HASH}) for table in TABLES]
    made = ParquetSource([DataFile(str(file))], features_of(tables), label_column="label", dense_columns=["age"])

    first, second = made.read(0), made.read(1)

    assert first.lookups["user"].values.tolist() == rows_of_texts(["a", "ü"], 10).tolist()
    assert first.lookups["user"].lengths.tolist() == [1, 1, 0]
    assert second.lookups["user"].values.tolist() == rows_of_texts(["a"], 10).tolist()
    expected = rows_of_integers(np.array([-1, 2**62]), IdRule.HASH, 10).tolist()
    assert first.lookups["words"].values.tolist() == expected
    assert second.lookups["words"].values.tolist() == expected[:1]


def test_texts_that_repeat_are_read_as_dictionaries(tmp_path: Path) -> None:
    """Of others a dictionary would cost more than it saves; without statistics it is not known."""
    texts = [f"{number:08x}" for number in range(1000)]
    columns = {"distinct": texts, "repeated": texts[:10] * 100, "list": [[text] for text in texts[:10] * 100]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), tmp_path / "b.parquet", write_statistics=False)

    found = [repeated_texts(pq.read_metadata(tmp_path / f"{name}.parquet"), list(columns)) for name in "ab"]

    assert found[0] == {"repeated": "repeated", "list": "list.list.element"}
    assert found[1] == {"distinct": "distinct", **found[0]}


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    """Which of them is meant cannot be known."""
    file = tmp_path / "part.parquet"
    arrays = [pa.array(values) for values in [*COLUMNS.values(), [1, 2, 3, 4]]]
    pq.write_table(pa.Table.from_arrays(arrays, names=[*COLUMNS, "user"]), file)

    with pytest.raises(DataError, match=r"part.parquet, column user: is there 2 times; hint: rename one"):
        ParquetSource([DataFile(str(file))], features_of(TABLES), label_column="label", dense_columns=["age"])


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    """With those that there are."""
    pq.write_table(pa.table({"label": [0]}), tmp_path / "part.parquet")

    with pytest.raises(DataError, match=r"has no column 'age' \(found label"):
        ParquetSource(
            [DataFile(str(tmp_path / "part.parquet"))], features_of(TABLES), label_column="label", dense_columns=["age"]
        )


def test_a_missing_number_is_named_with_its_row(tmp_path: Path) -> None:
    """Before training, by the file's own statistics; rows count through the file."""
    with pytest.raises(DataError, match="row 3, column age: is null; hint: fill it in or drop the row, or set spec"):
        source(tmp_path, age=[0.5, 1.5, 2.5, None])


@pytest.mark.parametrize(
    ("missing", "expected"), [(Missing.ZERO, [0.5, 0.0, 0.0, 3.5]), (Missing.MEAN, [0.5, 2.0, 2.0, 3.5])]
)
def test_missing_numbers_are_filled(tmp_path: Path, missing: Missing, expected: list[float]) -> None:
    """Nulls and NaN alike; the mean is of the values that are there, in all row groups."""
    made = source(tmp_path, row_group_size=2, missing=missing, age=[0.5, None, float("nan"), 3.5])
    made.fill_with_means(tmp_path / "data")

    found = np.concatenate([made.read(block).dense[:, 0] for block in range(2)])

    assert found.tolist() == expected
    assert kept_means(tmp_path / "data") == ({"age": 2.0} if missing is Missing.MEAN else None)


def test_a_resumed_run_fills_as_it_began(tmp_path: Path) -> None:
    """With the means that it kept, though the log has more rows now."""
    source(tmp_path, missing=Missing.MEAN, age=[1.0, None, 2.0, 3.0]).fill_with_means(tmp_path / "data")
    again = source(tmp_path, missing=Missing.MEAN, age=[None, 5.0, 5.0, 5.0])
    again.fill_with_means(tmp_path / "data")

    assert again.read(0).dense[0, 0] == 2.0


def test_a_column_without_a_value_has_no_mean(tmp_path: Path) -> None:
    """It is named, and no file of means is left."""
    with pytest.raises(DataError, match=r"column 'age' has no value in any row.*hint: leave it out"):
        source(tmp_path, missing=Missing.MEAN, age=pa.array([None] * 4, pa.float64())).fill_with_means(tmp_path / "d")

    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"user": [4, 5, 10, 4]}, "row 2: 'user' looks up row 10, table 'user' has rows 0 to 9; hint: give the table"),
        ({"user": [4, 5, 4, -1]}, "row 3: 'user' looks up row -1"),
        ({"words": [[1], None, [], [3, 2**40]]}, "row 3: 'words' looks up row 1099511627776"),
        ({"user": pa.array([4, 5, 4, 2**64 - 1], pa.uint64())}, "row 3: 'user' looks up row 9223372036854775807"),
        ({"label": [0, 1, None, 1]}, "row 2, column label: is null; hint: fill it in or drop the row$"),
    ],
    ids=["above", "negative", "in a list", "unsigned", "null label"],
)
def test_values_that_cannot_be_trained_are_found_before_training(
    tmp_path: Path, columns: dict[str, Any], expected: str
) -> None:
    """The footers tell of the row group, which alone is read for the row."""
    with pytest.raises(DataError, match=expected):
        source(tmp_path, **columns)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"user": [1, 2, 3, 4]}, {"user": ["a"] * 4}, "b.parquet, column user: holds texts, in .*a.parquet integers"),
        (
            {"at": pa.array([1] * 4, pa.timestamp("us"))},
            {"at": pa.array([1] * 4, pa.timestamp("us", "UTC"))},
            "b.parquet, column at: holds times in zone UTC, in .*a.parquet times without a zone; hint: write both",
        ),
    ],
    ids=["ids", "zones"],
)
def test_files_whose_values_do_not_compare_are_refused(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], expected: str
) -> None:
    """A text and an integer that print alike have other rows, and times with and without a zone have no order."""
    for name, columns in (("a", first), ("b", second)):
        at = pa.array([1] * 4, pa.timestamp("us"))
        pq.write_table(pa.table({**COLUMNS, "visit": [1] * 4, "at": at, **columns}), tmp_path / f"{name}.parquet")
    hashed = [table.model_copy(update={"id_rule": IdRule.HASH}) for table in TABLES]

    with pytest.raises(DataError, match=expected):
        ParquetSource(
            [DataFile(str(tmp_path / f"{name}.parquet")) for name in "ab"],
            features_of(hashed),
            label_column="label",
            dense_columns=["age"],
            session_column="visit",
            time_column="at",
        )


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """A sentence, not Arrow's error."""
    file = tmp_path / "part.parquet"
    file.write_bytes(b"PAR1 but no more")

    with pytest.raises(DataError, match="is not a Parquet file that can be read"):
        ParquetSource([DataFile(str(file))], features_of(TABLES), label_column="label", dense_columns=[])


@pytest.mark.parametrize(
    "ids",
    [pa.array([7, -2, 7, 7]), pa.array([7, 2**64 - 2, 7, 7], pa.uint64()), pa.array(["a", "ü", "a", "a"])],
    ids=["integers", "unsigned", "texts"],
)
def test_sessions_are_integers_or_texts(tmp_path: Path, ids: pa.Array) -> None:
    """Equal values are one session in all row groups, and others are others."""
    made = source(tmp_path, session="visit", time="at", visit=ids, at=pa.array([5, 3, 4, 9], pa.timestamp("us")))

    first, second = made.sessions(0), made.sessions(1)

    assert first.ids[0] == first.ids[2] == second.ids[0] != first.ids[1]
    assert first.times.tolist() == [5, 3, 4]


def test_times_without_a_sign_are_in_their_order(tmp_path: Path) -> None:
    """Also where they are above all integers with a sign."""
    at = pa.array([2**64 - 1, 0, 2**63, 5], pa.uint64())
    made = source(tmp_path, session="visit", time="at", visit=[1, 1, 1, 1], at=at)

    assert made.sessions(0).times.argsort().tolist() == [1, 2, 0]


def test_sessions_without_times_are_in_stored_order(tmp_path: Path) -> None:
    """The time column may be left out."""
    assert source(tmp_path, session="visit", visit=[1, 1, 1, 1]).sessions(0).times.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, r"part.parquet: has no column 'visit' \(found label, age, user, words\)"),
        (
            {"visit": [0.5, 1.5, 2.5, 3.5]},
            "column visit: is of type double, expected an integer or a text, which names",
        ),
        ({"visit": [1, 1, 2, 2], "at": ["x"] * 4}, "column at: is of type string, expected an integer or a timestamp"),
    ],
    ids=["missing", "type", "type of time"],
)
def test_a_session_column_that_cannot_be_used_is_named(tmp_path: Path, columns: Any, expected: str) -> None:
    """When the files are opened."""
    with pytest.raises(DataError, match=expected):
        source(tmp_path, session="visit", time="at" if "at" in columns else None, **columns)


def test_a_sample_without_a_session_is_named(tmp_path: Path) -> None:
    """By file, row, and column."""
    with pytest.raises(DataError, match=r"part.parquet row 3, column visit: is null; hint: .* drop the row$"):
        source(tmp_path, session="visit", visit=[1, 1, 2, None])


def test_a_feature_that_is_declared_constant_may_not_change_in_a_session(tmp_path: Path) -> None:
    """The error names file, row, feature, session, and both lists, though other sessions are between the samples."""
    made = source(
        tmp_path,
        row_group_size=4,
        session="visit",
        constant=["user", "words"],
        visit=["a", "b", "b", "a"],
        user=[4, 5, 5, 4],
        words=[[1, 2], [3], [3], list(range(9))],
    )

    with pytest.raises(DataError) as error:
        made.take(0, np.array([1]))

    assert str(error.value) == (
        f"{tmp_path / 'part.parquet'} row 3: 'words' changes in session 'a' (found [0, 1, 2, 3, 4, 5, 6, 7, ...] of 9 "
        "ids, and [1, 2] in row 0); hint: correct the log, or remove 'words' from spec.data.constantInSession"
    )


def test_features_that_are_declared_constant_may_change_between_sessions(tmp_path: Path) -> None:
    """Null and empty lists are equal, and a session that a row group cuts is two."""
    columns: dict[str, Any] = {"visit": [7, 8, 7, 7], "user": [4, 5, 4, 6], "words": [[], [1], None, [2]]}
    made = source(tmp_path, row_group_size=3, session="visit", constant=["user", "words"], **columns)

    assert [made.read(block).lookups["user"].values.tolist() for block in range(2)] == [[4, 5, 4], [6]]


def once(folder: Path, table: pa.Table, row_group_size: int) -> DataFile:
    """Write rows whose lists are stored once for rows next to each other that share them."""
    file = folder / "once.parquet"
    schema = stored_schema(table.schema, ["words"])
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, len(table), row_group_size):
            writer.write_table(without_repeats(table.slice(first, row_group_size), ["words"]).cast(schema))
    return DataFile(str(file))


@pytest.mark.parametrize("num_repeats", [7, 1], ids=["many repeat", "few repeat"])
def test_a_list_that_is_stored_once_is_every_rows(tmp_path: Path, num_repeats: int) -> None:
    """As if each row had it, whether rows then share it or, where few do, have their own."""
    words = [[1, 2, 3, 4, 5]] * num_repeats + [[place] for place in range(8 - num_repeats)]
    columns = {name: [*values, *values] for name, values in COLUMNS.items() if isinstance(values, list)}
    file = once(tmp_path, pa.table({**columns, "words": words}), 8)
    found = ParquetSource([file], features_of(TABLES), label_column="label", dense_columns=["age"]).read(0)
    rows = np.array([3, 0, 1, 7])

    assert isinstance(found.lookups["words"], SharedLists) == (num_repeats > 1)
    taken = found.take(rows).lookups["words"].by_sample
    assert np.split(taken.values, np.cumsum(taken.lengths)[:-1])[0].tolist() == words[3]
    assert taken.values.tolist() == [each for row in rows for each in words[row]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["[2, 2, 2, 2]", "[2, 2, 2, 2]", "[1, 1, 1, 11]", "[1, 1, 1, 11]"], "row 2: 'words' looks up row 11"),
        (["[2, 2, 2, 2]", "[2, 2, 2, 2]", "[2, 2, 2, 2]", "null"], None),
    ],
    ids=["outside", "first is null"],
)
def test_a_broken_list_that_is_stored_once_is_named(tmp_path: Path, words: list[str], expected: str | None) -> None:
    """By the first row that has it; a row group that begins with a repeat was cut by another program."""
    table = pa.table({**COLUMNS, "words": [json.loads(each) for each in words]})
    file = once(tmp_path, table, 4)
    if expected is None:
        expected = "row 0, column words.distinct: is null at the start of a row group"
        pq.write_table(pq.read_table(file.place).slice(1, 3), file.place)

    with pytest.raises(DataError, match=re.escape(expected)):
        ParquetSource([file], features_of(TABLES), label_column="label", dense_columns=["age"]).read(0)

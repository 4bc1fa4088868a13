"""Specification of the data formats that statistics are made of."""

import bz2
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from neuroshard_api.job.training import DataFormat
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.data.batches import DataBatch
from neuroshard_profiler.data.files import limited, open_data
from pyarrow import parquet


def criteo_line(*, label: str = "1", dense: str = "5", sparse: str = "68fd1e64") -> str:
    """Return one line of a Criteo file."""
    return "\t".join([label, *[dense] * 13, *[sparse] * 26])


def written(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def parquet_file(folder: Path, **columns: Any) -> Path:
    """Write a Parquet file of these columns."""
    path = folder / "data.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def npz_file(folder: Path, **arrays: Any) -> Path:
    """Write an NPZ file; double underscores in names stand for dots."""
    path = folder / "data.npz"
    values: dict[str, Any] = {name.replace("__", "."): np.array(array) for name, array in arrays.items()}
    np.savez(path, **values)
    return path


def read(
    path: Path, *, num_samples: int = 100, session: str | None = None, features: tuple[str, ...] = ()
) -> list[DataBatch]:
    """Read all batches of a file."""
    return list(open_data(str(path), data_format=None, features=features, session=session).batches(num_samples))


def test_a_criteo_file_has_26_features_of_one_lookup(tmp_path: Path) -> None:
    """Hashes are hexadecimal; an empty one looks nothing up, as in training."""
    lines = [criteo_line(sparse="ff"), criteo_line(dense="", sparse="")]
    (batch,) = read(written(tmp_path, "day_0.tsv", "\n".join(lines) + "\n"))

    assert list(batch.features) == [f"cat_{index}" for index in range(26)]
    assert batch.features["cat_25"].ids.tolist() == [255]
    assert batch.features["cat_25"].lengths.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (criteo_line() + "\t1", "line 2: has 41 columns, expected 40"),
        ("1,2,3", "line 2: has 1 columns"),
        (criteo_line(dense="x"), "line 2: column int_0: expected a number, found 'x'"),
        (criteo_line(sparse="xyz"), "line 2: column cat_0: expected a hexadecimal hash.*, found 'xyz'"),
        (criteo_line(label="7"), "line 2: column label: expected 0 or 1, found '7'"),
    ],
    ids=["too many", "commas", "dense", "sparse", "label"],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    """With its number, and the column where there is one."""
    path = written(tmp_path, "bad.tsv", f"{criteo_line()}\n{line}\n")

    with pytest.raises(DataError, match=message):
        read(path)


def packed(text: bytes, suffix: str) -> bytes:
    """Compress as a file's suffix says."""
    if suffix == ".zst":
        return bytes(pa.compress(text, "zstd", asbytes=True))
    return gzip.compress(text) if suffix.lower() == ".gz" else bz2.compress(text)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst", ".GZ"])
def test_compressed_text_is_read_as_plain_text(tmp_path: Path, suffix: str) -> None:
    """Unpacked on the way, in batches that end within what is unpacked at a time."""
    text = "".join(criteo_line(sparse=f"{index:x}") + "\n" for index in range(1000)).encode()

    batches = read(written(tmp_path, f"day_0.tsv{suffix}", packed(text, suffix)), num_samples=300)

    assert [batch.num_samples for batch in batches] == [300, 300, 300, 100]
    assert batches[1].features["cat_0"].ids.tolist() == list(range(300, 600))


@pytest.mark.parametrize("suffix", [".gz", ".bz2"])
def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path, suffix: str) -> None:
    """With what to do."""
    text = "".join(criteo_line(sparse=f"{index * 7919:x}") + "\n" for index in range(1000)).encode()
    whole = packed(text, suffix)

    with pytest.raises(DataError, match=rf"day_0\.tsv\{suffix}: cannot be unpacked .*copy it again"):
        read(written(tmp_path, f"day_0.tsv{suffix}", whole[: len(whole) // 2]))


def binary_day(folder: Path, count: int, **arrays: Any) -> Path:
    """Write a day as torchrec does, and return the file that names it."""
    np.save(folder / "day_0_dense.npy", np.zeros((count, 13), dtype=np.float32))
    np.save(folder / "day_0_labels.npy", np.zeros((count, 1), dtype=np.int32))
    if "sparse" in arrays:
        np.save(folder / "day_0_sparse.npy", arrays["sparse"])
    else:
        np.savez(folder / "day_0_sparse_multi_hot.npz", **arrays)
    return folder / "day_0_dense.npy"


@pytest.mark.parametrize("num_samples", [1000, 3000, 4096, 10_000])
def test_criteos_arrays_are_read_in_order(tmp_path: Path, num_samples: int) -> None:
    """By the trainer's reader, in batches of any size; negative integers are hashes, too."""
    ids = np.arange(9000 * 26, dtype=np.int32).reshape(9000, 26) - 5000
    batches = read(binary_day(tmp_path, 9000, sparse=ids), num_samples=num_samples)

    whole, rest = divmod(9000, num_samples)
    assert [batch.num_samples for batch in batches] == [*[num_samples] * whole, *([rest] if rest else [])]
    found = np.concatenate([batch.features["cat_3"].ids for batch in batches])
    assert (found == ids[:, 3].astype(np.int64) % 2**40).all()
    assert all((batch.features["cat_3"].lengths == 1).all() for batch in batches)


def test_criteos_multi_hot_arrays_have_several_lookups(tmp_path: Path) -> None:
    """As many as the second size of each feature's array."""
    arrays = {str(index): np.full((5, index % 3 + 1), index) for index in range(26)}
    path = binary_day(tmp_path, 5, **arrays)
    (batch,) = open_data(str(path), data_format=DataFormat.CRITEO_MULTI_HOT, features=(), session=None).batches(100)

    assert batch.features["cat_2"].lengths.tolist() == [3] * 5
    assert batch.features["cat_2"].ids.tolist() == [2] * 15


def test_arrays_of_no_samples_are_no_batches(tmp_path: Path) -> None:
    """As an empty text file is."""
    assert read(binary_day(tmp_path, 0, sparse=np.zeros((0, 26), dtype=np.int32))) == []
    assert read(written(tmp_path, "day_0.tsv", "")) == []


def test_arrays_that_are_cut_off_while_they_are_read_are_named(tmp_path: Path) -> None:
    """In the profiler's own error."""
    path = binary_day(tmp_path, 9000, sparse=np.zeros((9000, 26), dtype=np.int32))
    data = open_data(str(path), data_format=None, features=(), session=None)
    whole = (tmp_path / "day_0_sparse.npy").read_bytes()
    (tmp_path / "day_0_sparse.npy").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(DataError, match=r"day_0_sparse\.npy"):
        list(data.batches(1000))


def test_a_day_without_its_lookups_is_named(tmp_path: Path) -> None:
    """By the file that lacks."""
    path = binary_day(tmp_path, 5, **{"0": np.zeros((5, 1), dtype=np.int64)})

    with pytest.raises(DataError, match=r"day_0_sparse\.npy: does not exist"):
        read(path)


def test_a_url_is_read_by_fsspec(tmp_path: Path) -> None:
    """Text, Parquet and NPZ alike."""
    fsspec = pytest.importorskip("fsspec")
    files = [
        written(tmp_path, "day_0.tsv", criteo_line(sparse="ff") + "\n"),
        parquet_file(tmp_path, cat_0=[255]),
        npz_file(tmp_path, cat_0__values=[255], cat_0__lengths=[1]),
    ]
    for file in files:
        url = f"memory://{file.name}"
        fsspec.filesystem("memory").pipe_file(file.name, file.read_bytes())
        (batch,) = open_data(url, data_format=None, features=(), session=None).batches(10)
        assert batch.features["cat_0"].ids.tolist() == [255]


def test_parquet_columns_of_integers_texts_and_lists_are_features(tmp_path: Path) -> None:
    """Labels and other floating-point columns are passed over; nulls are empty."""
    path = parquet_file(
        tmp_path, label=[0.0, 1.0, 0.0], user=[3, None, 5], seen=[[1, 2], None, []], name=["a", "b", "c"]
    )
    (batch,) = read(path)

    assert list(batch.features) == ["user", "seen", "name"]
    assert batch.features["user"].lengths.tolist() == [1, 0, 1]
    assert batch.features["user"].ids.tolist() == [3, 5]
    assert batch.features["seen"].lengths.tolist() == [2, 0, 0]
    assert batch.features["seen"].ids.tolist() == [1, 2]


def test_a_session_column_is_no_feature(tmp_path: Path) -> None:
    """It holds integers, or texts, which become integers by their hash."""
    (batch,) = read(parquet_file(tmp_path, visit=["x", "y", "x"], item=[1, 2, 3]), session="visit")

    assert batch.sessions is not None
    assert batch.sessions[0] == batch.sessions[2] != batch.sessions[1]
    assert list(batch.features) == ["item"]
    (batch,) = read(parquet_file(tmp_path, visit=[7, -1, 7], item=[1, 2, 3]), session="visit")
    assert batch.sessions is not None
    assert batch.sessions.tolist() == [7, -1, 7]


@pytest.mark.parametrize(
    ("columns", "asked", "message"),
    [
        ({"a": [1]}, {"features": ("b",)}, "column 'b': is missing; hint: choose among a"),
        (
            {"a": [0.5]},
            {"features": ("a",)},
            "column 'a': holds double, expected an integer, a text, or a list of them",
        ),
        ({"a": [0.5]}, {}, "has no column of integers, texts, or lists of them"),
        ({"a": [1]}, {"session": "s"}, "column 's': is missing"),
        ({"a": [1], "s": [0.5]}, {"session": "s"}, "column 's': holds double; hint: a session is an integer or a text"),
        ({"a": [1, 2], "s": ["x", None]}, {"session": "s"}, "column 's': is null in 1 rows; hint: leave these rows"),
    ],
    ids=[
        *("missing", "fractions", "nothing to look up"),
        *("no session", "session of fractions", "null session"),
    ],
)
def test_a_bad_parquet_column_is_named(
    tmp_path: Path, columns: dict[str, Any], asked: dict[str, Any], message: str
) -> None:
    """The message says what it holds."""
    with pytest.raises(DataError, match=message):
        read(parquet_file(tmp_path, **columns), **asked)


def test_texts_and_nulls_are_read_as_in_training(tmp_path: Path) -> None:
    """A null looks nothing up, in a list or in place of it, and equal texts have one identity in all batches."""
    columns = {"tags": [["a", None], None, ["b", "a"]], "user": ["a", None, "b"], "item": [-4, None, 2**62]}
    first, second = read(parquet_file(tmp_path, **columns), num_samples=2)

    tags, user, item = (first.features[name] for name in ("tags", "user", "item"))
    assert (tags.lengths.tolist(), user.lengths.tolist(), item.lengths.tolist()) == ([1, 0], [1, 0], [1, 0])
    assert (tags.are_texts, user.are_texts, item.are_texts) == (True, True, False)
    assert tags.ids[0] == user.ids[0] == second.features["tags"].ids[1]
    assert (item.ids.tolist(), second.features["item"].ids.tolist()) == ([-4], [2**62])


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_csv_file_has_a_feature_for_each_column_of_ids(tmp_path: Path, suffix: str) -> None:
    """Also compressed; fractions are passed over, an empty cell looks nothing up, and integers are known as such."""
    text = "user,price,item\n7,0.5,a\n,1.5,b\n12,,a\n"
    content = packed(text.encode(), suffix) if suffix else text
    first, second = read(written(tmp_path, f"log.csv{suffix}", content), num_samples=2)

    assert list(first.features) == ["user", "item"]
    assert first.features["user"].lengths.tolist() == [1, 0]
    assert (first.features["user"].bounds, second.features["user"].bounds) == ((7, 7), (12, 12))
    assert first.features["item"].bounds is None
    assert second.features["item"].ids[0] == first.features["item"].ids[0]


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        ("a,b\n1,2\n1\n", {}, "log.csv line 3: has 1 columns, the header has 2"),
        ("a,b\n1,2\n", {"features": ("c",)}, r"log.csv line 1: has no column 'c' \(found a, b\)"),
        ("a,b\n,2\n", {"session": "a"}, "line 2, column a: is empty; hint: fill it in"),
        ("a\n0.5\n", {}, r"log.csv: has no column of integers, texts, or lists of them \(found a: fractions\)"),
        ("", {}, "log.csv: is empty, expected a header"),
    ],
    ids=["short line", "no column", "session", "fractions alone", "empty"],
)
def test_a_bad_csv_file_is_named(tmp_path: Path, text: str, asked: dict[str, Any], message: str) -> None:
    """By line and column."""
    with pytest.raises(DataError, match=message):
        read(written(tmp_path, "log.csv", text), **asked)


def test_a_csv_file_may_have_sessions(tmp_path: Path) -> None:
    """Of texts, the same in all batches; the column is not looked up."""
    first, second = read(written(tmp_path, "log.csv", "item,visit\n1,x\n2,y\n3,x\n"), num_samples=2, session="visit")

    assert list(first.features) == ["item"]
    assert first.sessions is not None
    assert second.sessions is not None
    assert first.sessions[0] == second.sessions[0] != first.sessions[1]


def test_an_npz_file_holds_jagged_features(tmp_path: Path) -> None:
    """Read in batches, each with its own ids."""
    path = npz_file(tmp_path, item__values=[7, 8, 9], item__lengths=[2, 0, 1], visit=[5, 5, 6])
    first, second = read(path, num_samples=2, session="visit")

    assert first.features["item"].ids.tolist() == [7, 8]
    assert second.features["item"].ids.tolist() == [9]
    assert second.sessions is not None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"item__values": [1]}, "the array 'item.lengths' is missing"),
        ({"item__values": [1, 2], "item__lengths": [1]}, "item.lengths: sum to 1, item.values holds 2 ids"),
        ({"item__values": [1.5], "item__lengths": [1]}, "item.values: is float64.*expected one row of integers"),
        ({"other": [1]}, "has no array <feature>.values; it has other"),
        (
            {"a__values": [1], "a__lengths": [1], "b__values": [1], "b__lengths": [1, 0]},
            "its arrays differ in their number of samples: {'a': 1, 'b': 2}",
        ),
    ],
    ids=["no lengths", "wrong sum", "not integers", "no feature", "uneven"],
)
def test_a_bad_npz_array_is_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    """The message says what is wrong with it."""
    with pytest.raises(DataError, match=message):
        read(npz_file(tmp_path, **arrays))


def test_a_damaged_page_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    """Its metadata is whole, so that the damage shows when rows are read."""
    path = parquet_file(tmp_path, item=np.arange(1000))
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)

    with pytest.raises(DataError, match=r"data\.parquet: cannot be read .*; hint: write the damaged file again"):
        read(path)


@pytest.mark.parametrize("name", ["data.parquet", "data.npz", "data.tsv"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    """Bytes without meaning are not data."""
    with pytest.raises(DataError, match=r"is not|has 1 columns"):
        read(written(tmp_path, name, b"\xff\xfe\x00garbage"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("data.dat", "tells no format"), ("nowhere.tsv", "is not a file")],
    ids=["suffix", "missing"],
)
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str, message: str) -> None:
    """By its path, with what to try."""
    written(tmp_path, "data.dat", "1,2")

    with pytest.raises(DataError, match=message):
        open_data(str(tmp_path / name), data_format=None, features=(), session=None)


def test_a_criteo_file_has_no_columns_to_name(tmp_path: Path) -> None:
    """Asking for one is a mistake, not nothing."""
    with pytest.raises(DataError, match="has no named columns"):
        read(written(tmp_path, "day.tsv", criteo_line()), session="user")


def test_reading_stops_after_so_many_samples(tmp_path: Path) -> None:
    """In whole batches, of which the first is always read."""
    path = npz_file(tmp_path, item__values=np.arange(10), item__lengths=np.ones(10, dtype=np.int64))
    batches = read(path, num_samples=3)

    assert [batch.num_samples for batch in limited(batches, 7)] == [3, 3]
    assert [batch.num_samples for batch in limited(batches, 1)] == [3]
    assert [batch.num_samples for batch in limited(batches, None)] == [3, 3, 3, 1]

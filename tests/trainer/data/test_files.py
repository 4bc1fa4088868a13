"""Files behind URLs, and compressed ones."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.process.errors import DataError, MissingPackageError, StorageError
from neuroshard_trainer.data.criteo import CriteoSource
from neuroshard_trainer.data.files import DataFile, matching_files
from neuroshard_trainer.data.formats import require_readable
from neuroshard_trainer.data.line_index import INDEX_SUFFIX
from neuroshard_trainer.data.parquet import ParquetSource
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.unpack import unpacked
from support import builders
from support.trainer.data_builders import CRITEO_TABLES, criteo_text, parquet_file

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: bytes(pa.compress(content, codec="zstd", asbytes=True)),
}
FEATURES = features_of(CRITEO_TABLES)


def text_source(file: DataFile, spare: Path) -> CriteoSource:
    """Return Criteo's samples in a file."""
    return CriteoSource([file], FEATURES, num_dense=13, spare=spare)


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_compressed_file_is_read_as_the_plain_one(tmp_path: Path, suffix: str) -> None:
    """It is unpacked once, and a second start finds the copy."""
    path = tmp_path / f"day_0.tsv{suffix}"
    path.write_bytes(PACKERS[suffix](criteo_text(1500).encode()))
    made = text_source(DataFile(str(path)), tmp_path / "spare")

    assert made.take(1, np.array([3])).lookups["cat_0"].values.tolist() == [1027 % 100]
    assert made.place(1, 3) == f"{path} line 1028"
    (copy,) = (each for each in (tmp_path / "spare").iterdir() if not each.name.endswith(INDEX_SUFFIX))
    stamp = copy.stat().st_mtime_ns
    text_source(DataFile(str(path)), tmp_path / "spare")
    assert copy.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("kept", [slice(0, -20), slice(0, 0)], ids=["cut off", "empty"])
def test_a_damaged_compressed_file_is_refused(tmp_path: Path, suffix: str, kept: slice) -> None:
    """And leaves no copy of its beginning."""
    path = tmp_path / f"day_0.tsv{suffix}"
    path.write_bytes(PACKERS[suffix](criteo_text(1500).encode())[kept])

    with pytest.raises(DataError, match=rf"{path.name}.*: (cannot be unpacked .*copy it again|is empty)"):
        text_source(DataFile(str(path)), tmp_path / "spare")


def test_without_room_for_a_copy_nothing_is_left(tmp_path: Path) -> None:
    """The sentence names the folder; a file in its place stands for a disk that refuses."""
    path = tmp_path / "day_0.tsv.gz"
    path.write_bytes(gzip.compress(b"text"))
    (tmp_path / "spare").touch()

    with pytest.raises(StorageError, match=r"spare.*cannot be written"):
        unpacked(DataFile(str(path)), spare=tmp_path / "spare")


def test_a_url_is_read_like_a_path(tmp_path: Path) -> None:
    """Text by its index, which a folder of the run keeps, and Parquet; folder and pattern name files, too."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/day_0.tsv", criteo_text(1500).encode())
    memory.pipe("/bucket/day_1.tsv", criteo_text(5).encode())
    parquet_file(tmp_path / "part.parquet", CRITEO_TABLES, count=6, num_dense=1)
    memory.pipe("/bucket/part.parquet", (tmp_path / "part.parquet").read_bytes())

    files = matching_files("memory://bucket/day_*", tmp_path, suffixes=())
    assert [file.name for file in files] == ["day_0.tsv", "day_1.tsv"]
    assert matching_files("memory://bucket", tmp_path, suffixes=(".tsv",)) == files
    made = CriteoSource(files, FEATURES, num_dense=13, spare=tmp_path)
    assert made.block_sizes.tolist() == [1024, 476, 5]
    assert made.take(1, np.array([0])).lookups["cat_0"].values.tolist() == [1024 % 100]
    (part,) = matching_files("memory://bucket/part.parquet", tmp_path, suffixes=())
    rows = ParquetSource([part], FEATURES, label_column="label", dense_columns=["dense_0"]).take(1, np.array([1]))
    assert rows.dense.tolist() == [[5.0]]


@pytest.mark.parametrize(
    ("url", "kind", "expected"),
    [
        ("memory://bucket/none_*", DataError, "memory://bucket/none_.* does not exist .*, and no file matches"),
        ("nonsense://bucket/x", DataError, "fsspec has no such kind of URL; hint: check what is before"),
        (
            "http://127.0.0.1:9/log*.parquet",
            DataError,
            "cannot be (listed|reached).*; hint: check the URL and its cred",
        ),
        ("s3://bucket/x", MissingPackageError, "s3://bucket/x: needs a package .Install s3fs.*; hint: install it"),
    ],
    ids=["no file", "no such kind", "no answer", "no package"],
)
def test_a_url_that_cannot_be_read_is_named(tmp_path: Path, url: str, kind: type[Exception], expected: str) -> None:
    """With the package to install, where one lacks."""
    with pytest.raises(kind, match=expected):
        matching_files(url, tmp_path, suffixes=())


@pytest.mark.parametrize("data_format", ["Parquet", "CSV", "NPZ"])
def test_files_behind_a_url_are_checked_before_anything_starts(tmp_path: Path, data_format: str) -> None:
    """As those of this machine: that they are there, and by their footers and headers what they hold."""
    memory = fsspec.filesystem("memory")
    memory.pipe("memory://checked/log.csv", b"label,dense_0\n1,0.5\n")
    pq.write_table(pa.table({"label": [1], "dense_0": [0.5]}), tmp_path / "log.parquet")
    memory.pipe("memory://checked/log.parquet", (tmp_path / "log.parquet").read_bytes())
    model = builders.job_data()["spec"]["model"] | {"numDenseFeatures": 1}
    job = builders.job(data={"format": data_format, "path": "memory://checked"}, model=model)
    tables = builders.table_set(builders.table("user"))

    expected = "memory://checked does not exist" if data_format == "NPZ" else r"/checked/log\..*: has no column 'user'"
    with pytest.raises(DataError, match=expected):
        require_readable(job, tables, root=tmp_path)


def test_what_this_user_may_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File or folder, with the remedy; the tests may run as a user who may read everything."""
    (tmp_path / "log.csv").write_text("label\n")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(
        DataError, match=r"log.csv: cannot be read: Permission denied; hint: allow this user to read it"
    ):
        DataFile(str(tmp_path / "log.csv")).open()
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied; hint: allow this user to read it"):
        matching_files(str(tmp_path), tmp_path, suffixes=(".csv",))


def test_a_file_that_shrinks_under_a_training_is_named(tmp_path: Path) -> None:
    """The sentence says to start again."""
    path = tmp_path / "day_0.tsv"
    path.write_text(criteo_text(1500))
    made = text_source(DataFile(str(path)), tmp_path)
    path.write_text(criteo_text(5))

    with pytest.raises(DataError, match=r"day_0.tsv line 1025: the file was changed"):
        made.read(1)

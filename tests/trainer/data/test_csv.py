"""CSV files with a header, whole and broken."""

import bz2
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.training import Data
from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.formats import open_source, require_readable
from neuroshard_trainer.data.id_rules import rows_of_texts
from neuroshard_trainer.data.line_index import LINES_PER_BLOCK
from neuroshard_trainer.data.samples import Samples, features_of, joined
from neuroshard_trainer.data.sessions import SessionSource
from neuroshard_trainer.data.source import SampleSource
from support import builders

TABLES = builders.table_set(
    builders.table("item", num_embeddings=10),
    builders.table("size", feature_names=("größe",), num_embeddings=1000, id_rule=IdRule.HASH),
)
TEXT = 'label,größe,"price, EUR",item,note\n1,a,0.5,3,x\n0,"b, c",1.5,,y\n1,,2.5,9,\n'


def opened(folder: Path, path: str, **fields: Any) -> SampleSource:
    """Open files as a job's samples."""
    data = validated(Data, {"format": "CSV", "path": path, "denseColumns": ["price, EUR"], **fields}, where="spec.data")
    return open_source(
        data, TABLES, features_of(TABLES.tables), num_dense=1, seed=0, root=folder, spare=folder / "spare"
    )


def all_samples(source: SampleSource) -> Samples:
    """Return all samples of a source."""
    sizes = np.asarray(source.block_sizes).tolist()
    return joined([source.take(block, np.arange(size)) for block, size in enumerate(sizes)])


def packed(text: bytes, suffix: str) -> bytes:
    """Compress as a file's suffix says."""
    if suffix == ".zst":
        return bytes(pa.compress(text, "zstd", asbytes=True))
    if suffix == ".bz2":
        return bz2.compress(text)
    return gzip.compress(text) if suffix == ".gz" else text


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".bz2"])
@pytest.mark.parametrize(("end", "tab", "mark"), [("\n", False, ""), ("\r\n", True, "\ufeff")], ids=["unix", "excel"])
def test_columns_are_read_by_name(tmp_path: Path, suffix: str, end: str, mark: str, *, tab: bool) -> None:
    """Quoted values, unicode, line ends and separators of any kind; an empty id looks nothing up."""
    text = TEXT.replace('"b, c"', "b c").replace('"price, EUR"', "price EUR").replace(",", "\t") if tab else TEXT
    name = f"log.{'tsv' if tab else 'csv'}{suffix}"
    (tmp_path / name).write_bytes(packed((mark + text.replace("\n", end)).encode(), suffix))

    found = all_samples(opened(tmp_path, name, denseColumns=["price EUR" if tab else "price, EUR"]))

    assert found.labels.tolist() == [1, 0, 1]
    assert found.dense[:, 0].tolist() == [0.5, 1.5, 2.5]
    assert found.lookups["item"].values.tolist() == [3, 9]
    assert found.lookups["item"].lengths.tolist() == [1, 0, 1]
    hashed = rows_of_texts(["a", "b c" if tab else "b, c"], 1000)
    assert found.lookups["größe"].values.tolist() == hashed.tolist()


@pytest.mark.parametrize("ends_in_newline", [True, False])
def test_files_of_many_blocks_are_read_whole(tmp_path: Path, *, ends_in_newline: bool) -> None:
    """Each file has its header, and the columns in an order of its own."""
    count = 2 * LINES_PER_BLOCK + 5
    lines = [f"{row % 2},u{row},{row},{row % 10}" for row in range(count)]
    (tmp_path / "a.csv").write_text("label,größe,price,item\n" + "\n".join(lines) + "\n" * ends_in_newline)
    swapped = [",".join(reversed(line.split(","))) for line in lines]
    (tmp_path / "b.csv").write_text("item,price,größe,label\n" + "\n".join(swapped) + "\n" * ends_in_newline)

    source = opened(tmp_path, "*.csv", denseColumns=["price"])
    found = all_samples(source)

    assert found.dense[:, 0].tolist() == [*range(count)] * 2
    assert (
        found.lookups["größe"].values.tolist() == rows_of_texts([f"u{row}" for row in range(count)], 1000).tolist() * 2
    )
    assert source.place(0, 0).endswith("a.csv line 2")
    assert source.place(1, 0).endswith(f"a.csv line {LINES_PER_BLOCK + 1}")
    again = opened(tmp_path, "*.csv", denseColumns=["price"])  # by the indexes that are there now
    assert np.asarray(again.block_sizes).tolist() == np.asarray(source.block_sizes).tolist()


@pytest.mark.parametrize(("missing", "expected"), [("Zero", [0.5, 0, 0, 4]), ("Mean", [0.5, 2.25, 2.25, 4])])
def test_empty_cells_are_filled(tmp_path: Path, missing: str, expected: list[float]) -> None:
    """So is NaN, which pandas and NumPy write."""
    (tmp_path / "log.csv").write_text("label,größe,price,item\n1,a,0.5,1\n1,a,,1\n1,a,nan,1\n1,a,4,1\n")

    found = all_samples(opened(tmp_path, "log.csv", denseColumns=["price"], missing=missing))

    assert found.dense[:, 0].tolist() == expected


HEADER = "label,größe,price,item\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "log.csv: is empty, expected a header and one sample per line; hint: write it again"),
        (HEADER, "log.csv: has a header and no samples; hint: check spec.data.path"),
        ("label,größe,price\n1,a,1\n", r"log.csv line 1: has no column 'item' \(found label, größe, price\); hint"),
        ("label,größe,price,item,item\n1,a,1,1,1\n", "log.csv line 1, column item: is there 2 times; hint: rename one"),
        (HEADER + "1,a,1,1\n1,a,1\n", "log.csv line 3: has 3 columns, the header has 4; hint: quote values that hold"),
        (HEADER + "1,a,1,1\n1,a,1,1,1\n", "log.csv line 3: has 5 columns, the header has 4"),
        (HEADER + "1,a,1,1\n\n1,a,1,1\n", "log.csv line 3: is empty, expected a sample; hint: remove the line"),
        (HEADER + "1,a,1,1\n\n", "log.csv line 3: is empty, expected a sample; hint: remove the line"),
        (HEADER + "1,a,1,sku-1\n", r"line 2: column item: is not an integer of 64 bits \(found 'sku-1'\); hint: write"),
        (HEADER + "1,a,1,7.0\n", r"line 2: column item: is not an integer of 64 bits \(found '7.0'\); hint: .* idRule"),
        (HEADER + "1,a,1,18446744073709551615\n", "line 2: column item: is not an integer of 64 bits"),
        (HEADER + "1,a,NA,1\n", r"line 2: column price: is not a number \(found 'NA'\); hint: .*nothing where"),
        (HEADER + "1,a,,1\n", "line 2, column price: is empty; hint: fill it in or drop the line, or set spec"),
        (HEADER + ",a,1,1\n", "line 2, column label: is empty; hint: fill it in or drop the line$"),
        (HEADER + "yes,a,1,1\n", r"line 2: column label: is not a number \(found 'yes'\)"),
        (HEADER + '1,"a\nb",1,1\n', "log.csv line 2: .*"),
        (b"label,gr\xf6\xdfe,price,item\n1,a,1,1\n", "log.csv line 1: is not UTF-8 .*; hint: write it as UTF-8"),
        (HEADER.encode() + b"1,\xf6,1,1\n", "log.csv line 2: is not UTF-8 .*; hint: write the file as UTF-8"),
        (b"PAR1\0\0", "log.csv"),
    ],
    ids=[
        "empty", "header alone", "column that lacks", "column twice", "short line", "long line", "blank line",
        "blank last line", "text id", "decimal id", "huge id", "word", "empty number", "empty label", "label of words",
        "line break in a value", "Latin-1 header", "Latin-1 line", "Parquet",
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_line_column_and_remedy(tmp_path: Path, text: str | bytes, expected: str) -> None:
    """Nothing is left half written, so that a corrected file trains."""
    (tmp_path / "log.csv").write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(DataError, match=expected):
        all_samples(opened(tmp_path, "log.csv", denseColumns=["price"]))

    assert not list(tmp_path.rglob("*.part"))


TIMES = {
    "integers": ["3", "1", "2", "9"],
    "times": ["2026-01-01 12:00:02", "2026-01-01", "2026-01-01T12:00:01.5", "2026-01-02 00:00:00"],
    "zones": ["2026-01-01T12:00:02Z", "2026-01-01T12:00:00+02:00", "2026-01-01T11:00:00Z", "2026-01-03 00:00:00Z"],
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_samples_come_in_sessions(tmp_path: Path, times: list[str]) -> None:
    """Named by texts, and ordered by integers or times, as in Parquet; a feature may be declared constant."""
    lines = [f"1,a,0.5,{item},{visit},{at}\n" for item, visit, at in zip("1213", "xyxz", times, strict=True)]
    (tmp_path / "log.csv").write_text(HEADER.replace("\n", ",visit,at\n") + "".join(lines))
    fields = {"denseColumns": ["price"], "sessionColumn": "visit", "timeColumn": "at"}
    source = opened(tmp_path, "log.csv", **fields)
    assert isinstance(source, SessionSource)

    found = source.sessions(0)

    assert found.ids[0] == found.ids[2] not in {found.ids[1], found.ids[3]}
    assert found.times.argsort().tolist() == [1, 2, 0, 3]
    assert len(all_samples(opened(tmp_path, "log.csv", **fields, constantInSession=["item"]))) == 4
    changed = (tmp_path / "log.csv").read_text().replace("0.5,1,x", "0.5,4,x", 1)
    (tmp_path / "changed.csv").write_text(changed)
    with pytest.raises(
        DataError, match=r"changed.csv line 4: 'item' changes in session 'x' \(found \[1\], .* in line 2\)"
    ):
        all_samples(opened(tmp_path, "changed.csv", **fields, constantInSession=["item"]))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["x,", "x,1"], "log.csv line 2: column at: is neither an integer nor a time .*hint: write integers, or times"),
        (["x,1", "x,"], "log.csv line 3, column at: is empty; hint: fill it in or drop the line$"),
        (["x,1", ",2"], "log.csv line 3, column visit: is empty; hint: fill it in or drop the line$"),
        (["x,1", "x,2026-01-01"], "log.csv line 3: column at: is not an integer of 64 bits .*hint"),
        (
            ["x,2026-01-01", "x,2026-01-01T00:00:00Z"],
            "column at: is not a time without a zone .*hint: write all",
        ),
    ],
    ids=["no first time", "no time", "no session", "a time among integers", "a zone"],
)
def test_sessions_that_cannot_be_ordered_are_named(tmp_path: Path, cells: list[str], expected: str) -> None:
    """By line and column."""
    lines = "".join(f"1,a,0.5,1,{each}\n" for each in cells)
    (tmp_path / "log.csv").write_text(HEADER.replace("\n", ",visit,at\n") + lines)

    with pytest.raises(DataError, match=expected):
        opened(tmp_path, "log.csv", denseColumns=["price"], sessionColumn="visit", timeColumn="at").sessions(0)  # type: ignore[attr-defined] # of a source with sessions


def test_a_file_is_read_once_where_it_is_there_twice(tmp_path: Path) -> None:
    """Plain and compressed, as gzip leaves it with --keep."""
    (tmp_path / "log.csv").write_text(TEXT)
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(TEXT.encode()))

    with pytest.raises(DataError, match="the same samples twice; hint: match one of them"):
        opened(tmp_path, ".")


def test_headers_are_checked_before_anything_starts(tmp_path: Path) -> None:
    """Of all files, without an index."""
    (tmp_path / "a.csv").write_text(HEADER + "1,a,1,1\n")
    (tmp_path / "b.csv").write_text("label,größe,price\n1,a,1\n")
    job = builders.job(
        data={"format": "CSV", "path": "*.csv", "denseColumns": ["price"]},
        model=builders.job_data()["spec"]["model"] | {"numDenseFeatures": 1},
    )

    with pytest.raises(DataError, match=r"b.csv line 1: has no column 'item'"):
        require_readable(job, TABLES, root=tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]

"""Logs that cannot be trained on: `neuroshard stats` and the trainer's reading of each."""

import gzip
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.process.errors import DataError
from neuroshard_cli.main import run as neuroshard
from neuroshard_trainer.data.formats import open_source, require_readable
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import SessionSource
from neuroshard_trainer.data.source import require_valid
from support import builders

COUNT = 64
FEATURES = ("user", "item", "city")
SESSIONS = {"sessionColumn": "s", "timeColumn": "t"}
LINES = "".join(f"{row % 2},{row % 10},{row % 7},c{row % 4},{row / 3:.3f}\n" for row in range(COUNT))
HEADER = "label,user,item,city,dense_0\n"
CSV = HEADER + LINES


def halves(*values: Any) -> list[Any]:
    """Return a column in which these values take turns."""
    return [values[row % len(values)] for row in range(COUNT)]


def table(**changed: Any) -> pa.Table:
    """Return a log, with some columns changed, added, or (None) left out."""
    rows = np.arange(COUNT)
    columns: dict[str, Any] = {
        "label": rows % 2,
        "user": rows % 10,
        "item": [[int(row) % 7, int(row) % 5] for row in rows],
        "city": [f"c{row % 4}" for row in rows],
        "dense_0": rows / 3.0,
    }
    return pa.table({name: values for name, values in {**columns, **changed}.items() if values is not None})


def files(*tables: pa.Table, **options: Any) -> Callable[[Path], None]:
    """Return a writer of these Parquet files."""

    def write(folder: Path) -> None:
        for number, each in enumerate(tables):
            pq.write_table(each, folder / f"{number}.parquet", **options)

    return write


def text(content: str | bytes, name: str = "0.csv") -> Callable[[Path], object]:
    """Return a writer of one file."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def changed(at: slice, data: bytes) -> Callable[[Path], None]:
    """Return a writer of a Parquet file with other bytes at a place."""

    def write(folder: Path) -> None:
        files(table(), compression="NONE")(folder)
        found = bytearray((folder / "0.parquet").read_bytes())
        found[at] = data
        (folder / "0.parquet").write_bytes(found)

    return write


def zipped(folder: Path) -> None:
    """Write an archive under the name of a text."""
    with zipfile.ZipFile(folder / "0.csv", "w") as archive:
        archive.writestr("0.csv", CSV)


def twice(name: str) -> pa.Table:
    """Return a log with a column that is there twice."""
    log = table()
    return log.append_column(name, log[name])


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A log, and the sentences about it."""

    write: Callable[[Path], Any]
    stats: str | None = None
    """Of the error, or None: there is none, since the features can be counted."""
    note: str | None = None
    """What stats says besides."""
    trained: str
    spec: Mapping[str, str] = field(default_factory=dict)


BROKEN: dict[str, Broken] = {
    "cut Parquet": Broken(
        write=changed(slice(-20, None), b""), stats=r"0.parquet: is not a Parquet file .*hint: write it again",
        trained=r"0.parquet: is not a Parquet file .*hint: write it again",
    ),
    "damaged page": Broken(
        write=changed(slice(4, 200), b"\xff" * 196), stats="0.parquet: cannot be read .*hint: write the damaged",
        trained="0.parquet: row group 0 cannot be read .*hint: write the file again",
    ),
    "damaged footer": Broken(
        write=changed(slice(-60, -8), b"\x99" * 52), stats="0.parquet: is not a Parquet", trained="is not a Parquet",
    ),
    "empty file": Broken(write=text(b"", "0.parquet"), stats="file size is 0 bytes", trained="file size is 0 bytes"),
    "no rows": Broken(
        write=files(table().slice(0, 0)), stats="holds no samples.*hint", trained="0.parquet: no rows, expected",
    ),
    "no columns": Broken(
        write=files(pa.table({})), stats="has no column of integers.*hint", trained="no column 'label' .found none.",
    ),
    "text in the second file": Broken(
        write=files(table(), table(user=halves("1", "2"))), stats="1.parquet: column 'user': holds texts, in .*same",
        trained="1.parquet, column user: holds texts, in .*0.parquet integers; hint: write both files with the same",
    ),
    "column lacks in the second file": Broken(
        write=files(table(), table(user=None)), stats="1.parquet: column 'user': is missing; hint",
        trained="1.parquet: has no column 'user' .*hint: add it",
    ),
    "words as labels": Broken(
        write=files(table(label=halves("yes", "no"))), note="label: holds string, and training reads 0 and 1; hint",
        trained="column label: is of type string, expected a number; hint: write numbers .0 or 1",
    ),
    "labels 1 and 2": Broken(
        write=files(table(label=halves(1, 2))), trained="row 1: the label must be 0 or 1, found 2; hint: convert",
    ),
    "NaN as a label": Broken(
        write=files(table(label=halves(0.0, float("nan")))), trained="row 1: the label must be 0 or 1, found nan; hint",
    ),
    "null label without statistics": Broken(
        write=files(table(label=halves(0, None)), write_statistics=False), trained="row 1, column label: is null; hint",
    ),
    "null label": Broken(
        write=files(table(label=halves(0, None))), note="label: is missing in 32 of 64 samples; hint: fill it in",
        trained="row 1, column label: is null, as in 32 rows of the file; hint",
    ),
    "label in a list": Broken(
        write=files(table(label=halves([0], [1]))), note="label: holds list", trained="label: is of type list.*hint",
    ),
    "label twice": Broken(
        write=files(twice("label")), stats="column label: is there 2 times; hint: rename one",
        trained="column label: is there 2 times; hint: rename one",
    ),
    "infinite number": Broken(
        write=files(table(dense_0=halves(1.0, float("inf")))),
        trained="0.parquet row 1, column dense_0: is inf, expected a finite number of 32 bits; hint: fix or drop",
    ),
    "number beyond 32 bits": Broken(
        write=files(table(dense_0=halves(1.0, 1e300))), trained="row 1, column dense_0: is 1e[+]300, expected.*hint",
    ),
    "null number": Broken(
        write=files(table(dense_0=halves(1.0, None))), note="dense_0: is missing in 32 of 64 samples; hint: set spec",
        trained="row 1, column dense_0: is null, .*; hint: .*spec.data.missing",
    ),
    "number as text": Broken(
        write=files(table(dense_0=halves("1.5"))), trained="column dense_0: is of type string, expected a number; hint",
    ),
    "ids as floats": Broken(
        write=files(table(user=halves(1.0, None))), note="passed over: user, dense_0: double",
        trained="column user: is of type double, .*hint: write integers .pandas keeps them next to nulls as Int64",
    ),
    "unsigned ids above 64 bits with a sign": Broken(
        write=files(table(user=pa.array(halves(2**64 - 1), pa.uint64()))),
        trained="row 0: 'user' looks up row 9223372036854775807, .*hint: .*idRule: Hash",
    ),
    "negative ids": Broken(write=files(table(user=halves(1, -1))), trained="row 1: 'user' looks up row -1, .*hint"),
    "ids beyond rows": Broken(
        write=files(table(user=halves(1, 100)), write_statistics=False),
        trained="row 1: 'user' looks up row 100, table 'user' has rows 0 to 99; hint: give the table more rows",
    ),
    "struct": Broken(
        write=files(table(user=halves({"id": 1}))), note="user: struct", trained="user: is of type struct.*hint",
    ),
    "list of lists": Broken(
        write=files(table(item=halves([[1]]))), note="item: list<element: list", trained="item: is of type list.*hint",
    ),
    "column without a type": Broken(
        write=files(table(user=pa.nulls(COUNT))), note="user: null", trained="user: is of type null, expected.*hint",
    ),
    "extension type": Broken(
        write=files(table(user=pa.ExtensionArray.from_storage(pa.uuid(), pa.array(halves(b"0" * 16), pa.binary(16))))),
        note="user: extension<arrow.uuid>", trained="column user: is of type extension<arrow.uuid>, expected.*hint",
    ),
    "decimal ids": Broken(
        write=files(table(user=pa.array(halves(Decimal(3)), pa.decimal128(9, 0)))), note="user: decimal128",
        trained="column user: is of type decimal128.*hint",
    ),
    "column twice": Broken(
        write=files(twice("user")), stats="column user: is there 2 times; hint: rename one, or give --ignore user",
        trained="column user: is there 2 times; hint: rename one",
    ),
    "zone-aware and naive times": Broken(
        write=files(
            table(s=halves(1), t=halves(datetime(2026, 1, 1))),  # noqa: DTZ001 - naive on purpose
            table(s=halves(1), t=halves(datetime(2026, 1, 1, tzinfo=UTC))),
        ),
        stats=r"1.parquet: column 't': holds timestamp\[us, tz=UTC\], in .*hint: write both",
        trained="1.parquet, column t: holds times in zone UTC, in .*times without a zone; hint: write both",
        spec=SESSIONS,
    ),
    "times as text": Broken(
        write=files(table(s=halves(1), t=halves("2026-01-01"))), stats="column 't': holds string; hint: time is",
        trained="column t: is of type string, expected an integer or a timestamp; hint", spec=SESSIONS,
    ),
    "null session": Broken(
        write=files(table(s=halves(1, None), t=halves(1))), stats="column 's': is null in 32 rows; hint",
        trained="0.parquet row 1, column s: is null, .*; hint", spec=SESSIONS,
    ),
    "sessions as text in the second file": Broken(
        write=files(table(s=halves(1)), table(s=halves("1"))), stats="1.parquet: column 's': holds texts, in .*hint",
        trained="1.parquet, column s: holds texts, in .*integers; hint", spec={"sessionColumn": "s"},
    ),
    "folder of folders": Broken(
        write=lambda folder: (folder / "day=1").mkdir(), stats="has no file that ends in .*hint: name the files of",
        trained="has no file that ends in .parquet; hint: name the files of folders such as .*day=1",
    ),
    "link that leads nowhere": Broken(
        write=lambda folder: (folder / "0.parquet").symlink_to(folder / "0.parquet"), stats="hint: .*leads nowhere",
        trained="hint: .*0.parquet is a link that leads nowhere",
    ),
    "empty CSV": Broken(write=text(""), stats="0.csv: is empty, .*hint", trained="0.csv: is empty, .*hint"),
    "header alone": Broken(write=text(HEADER), stats="no samples.*hint", trained="has a header and no samples; hint"),
    "no header": Broken(
        write=text("1,5,8,c,0.5\n" + LINES), stats="line 1: holds values .found 1, 5, 8., .*hint: add a line",
        trained="line 1: has no column 'label' .*hint",
    ),
    "line ends of old Macs": Broken(
        write=text(CSV.replace("\n", "\r")), stats="line 1: is not a header.*hint: .*end lines with",
        trained="line 1: is not a header.*hint",
    ),
    "UTF-16": Broken(
        write=text(CSV.encode("utf-16")), stats="text in UTF-16, expected UTF-8; hint", trained="in UTF-16.*hint",
    ),
    "empty numbers": Broken(
        write=text(CSV.replace(",0.333", ",", 1)), note="dense_0: is missing in 1 of 64 samples; hint: set",
        trained="0.csv line 3, column dense_0: is empty; hint: .*spec.data.missing",
    ),
    "Latin-1": Broken(
        write=text(CSV.replace("c1", "köln").encode("latin-1")), stats="line 3: is not UTF-8 .*hint: write the file",
        trained="0.csv line 3: is not UTF-8 .*hint: write the file as UTF-8",
    ),
    "line break in quotes": Broken(
        write=text(CSV.replace("c1", '"c\n1"', 1)), stats="line 3: has a quote that does not end in the line; hint",
        trained="0.csv line 3: has a quote that does not end in the line; hint",
    ),
    "quote without an end": Broken(
        write=text(CSV.replace("c1", '"c1', 1)), stats="line 3: has a quote that does not end", trained="line 3: has a",
    ),
    "semicolons": Broken(
        write=text(CSV.replace(",", ";")), stats="line 1: has one column .*not by ';'; hint: write commas",
        trained="0.csv line 1: has one column .*hint: write commas, or tabs",
    ),
    "JSON": Broken(
        write=text('{"label": 1, "user": 2}\n'), stats="holds JSON.*hint", trained="line 1: holds JSON.*hint",
    ),
    "header again": Broken(
        write=text(CSV + CSV), stats="line 66: repeats the header; hint: remove the line",
        trained="line 66: repeats.*hint",
    ),
    "header of a longer line": Broken(
        write=text(CSV + "1,2\n"), stats="line 66: has 2 columns, the header has 5; hint",
        trained="line 66: has 2 col.*hint",
    ),
    "byte 0": Broken(
        write=text(CSV.replace("c1", "c\0", 1)), stats="line 3: holds a byte of value 0; hint",
        trained="binary data.*hint",
    ),
    "one endless line": Broken(
        write=text("x" * 300_000), stats="line 1: is not a header .*hint", trained="line 1: is not a header .*hint",
    ),
    "gzip that is cut": Broken(
        write=text(gzip.compress(CSV.encode())[:200], "0.csv.gz"), stats="cannot be unpacked .*hint: copy it again",
        trained="0.csv.gz: cannot be unpacked .*hint: copy it again",
    ),
    "gzip that is none": Broken(
        write=text(CSV, "0.csv.gz"), stats="cannot be unpacked .*hint", trained="0.csv.gz: cannot be unpacked .*hint",
    ),
    "gzip named CSV": Broken(
        write=text(gzip.compress(CSV.encode())), stats="binary data, .*hint: name files that are compressed .gz",
        trained="0.csv: holds binary data, expected lines of text; hint",
    ),
    "zip named CSV": Broken(write=zipped, stats="holds binary data.*hint", trained="holds binary data.*hint"),
}  # fmt: skip


def trained(folder: Path, spare: Path, spec: Mapping[str, str]) -> None:
    """Check a log as `neuroshard run` does before it profiles, and read all of it as training does."""
    data_format = "CSV" if any(".csv" in file.name for file in folder.iterdir()) else "Parquet"
    rules = {"city": IdRule.HASH}
    tables = builders.table_set(
        *(builders.table(name, num_embeddings=100, embedding_dim=16, id_rule=rules.get(name)) for name in FEATURES)
    )
    features = features_of(tables.tables)
    model = builders.job_data()["spec"]["model"] | {"numDenseFeatures": 1}
    job = builders.job(data={"format": data_format, "path": str(folder), **spec}, model=model)
    require_readable(job, tables, root=folder)
    source = open_source(job.spec.data, tables, features, num_dense=1, seed=0, root=folder, spare=spare)
    for block, size in enumerate(source.block_sizes):
        if spec and isinstance(source, SessionSource):
            source.sessions(block)
        rows = np.arange(size)
        require_valid(source.take(block, rows), features, source, block, rows)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_log_is_a_sentence_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """It names file, row, and column where there are such; nothing is left half written."""
    broken = BROKEN[name]
    log = tmp_path / "log"
    log.mkdir()
    broken.write(log)
    options = [f"--{each.removesuffix('Column')}={column}" for each, column in broken.spec.items()]

    code = neuroshard(["stats", str(log), "--embedding-dim", "16", "--out", str(tmp_path / "out.json"), *options])
    shown = " ".join(capsys.readouterr().err.replace("\nhint:", "; hint:").split())
    with pytest.raises(DataError, match=broken.trained) as caught:
        trained(log, tmp_path / "spare", broken.spec)

    assert code == (0 if broken.stats is None else 2), shown
    assert re.search(broken.stats or broken.note or "", shown), shown
    assert "Traceback" not in shown
    assert "; hint: " in str(caught.value)
    assert (tmp_path / "out.json").exists() == (broken.stats is None)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "log",
    [
        table(label=pa.array(halves(Decimal(1), Decimal(0)), pa.decimal128(38, 2))),
        table(label=np.arange(COUNT) % 2 == 0),
        table(user=pa.array(halves(1, 2)).dictionary_encode(), city=pa.array(halves("a", "b"), pa.large_string())),
        table(item=pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * COUNT) % 7), 2)),
        table(item=pa.array(halves([1, 2], None), pa.list_view(pa.int64()))),
        table(dense_0=pa.array(halves(2**62 + 1, 7))),
        table(city=pa.array(halves("a", None), pa.string_view())),
    ],
    ids=["decimals", "truth values", "dictionary", "lists of one length", "views of lists", "large numbers", "views"],
)
def test_unusual_types_are_read(tmp_path: Path, log: pa.Table) -> None:
    """Labels, ids, and numbers of any type of Arrow that has their values; a row group without rows is passed over."""
    with pq.ParquetWriter(tmp_path / "0.parquet", log.schema) as writer:
        for part in (log.slice(0, 0), log, log.slice(0, 0)):
            writer.write_table(part)

    trained(tmp_path, tmp_path, {})

"""Specification of ``neuroshard init``: a whole job from data, or one sentence and nothing."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.documents.yaml_text import parse_manifests
from neuroshard_api.job.job_file import JobFile, read_job_file
from neuroshard_api.job.training import DataFormat
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.shared.new_job import job_name, scalar
from neuroshard_trainer.data.formats import require_readable
from support.trainer.data_builders import criteo_arrays, criteo_file

COUNT = 400
RNG = np.random.default_rng(0)
COLUMNS: dict[str, Any] = {
    "label": RNG.integers(0, 2, COUNT),
    "item": RNG.integers(0, 50, COUNT),
    "price": RNG.random(COUNT),
}
DIM = ("--embedding-dim", 16)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log(name: str = "log.parquet", **columns: Any) -> Path:
    """Write a Parquet file of the usual columns and others; None: without the column."""
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    kept = {column: values for column, values in {**COLUMNS, **columns}.items() if values is not None}
    pq.write_table(pa.table(kept), path, row_group_size=100)
    return path


def csv_log(*prices: str, header: str = "label,item,price") -> None:
    """Write a CSV file whose third column takes these cells in turn."""
    rows = (f"{row % 2},{row % 7},{prices[row % len(prices)]}\n" for row in range(COUNT))
    Path("log.csv").write_text(f"{header}\n{''.join(rows)}", encoding="utf-8")


def changed(values: Any, row: int, value: Any) -> pa.Array:
    """Return values of which one is another one."""
    return pa.array([*values[:row], value, *values[row + 1 :]])


def job_of(text: str) -> JobFile:
    """Return the job that was written, read as every command reads it."""
    Path("job.yaml").write_text(text, encoding="utf-8")
    return read_job_file(Path("job.yaml"))


@pytest.mark.usefixtures("folder")
def test_a_log_becomes_a_job_that_every_command_takes(neuroshard: Any) -> None:
    """Columns in other scripts, hashes, texts, lists, dense columns with nulls, and columns that are passed over."""
    hashes = RNG.integers(-(2**62), 2**62, 40)
    for part in range(2):
        log(
            f"clicks/{part}.parquet",
            clicked=RNG.integers(0, 2, COUNT), label=None,
            **{
                "ad id": hashes[RNG.integers(0, 40, COUNT)],
                "ad_id": RNG.integers(0, 9, COUNT),
                "城市": pa.array([f"市{each}" for each in RNG.integers(0, 9, COUNT)]),
                "商店": pa.array([f"店{each}" for each in RNG.integers(0, 9, COUNT)]),
                "seen": [[1] * (row % 3) for row in range(COUNT)],
                "age": RNG.integers(18, 80, COUNT),
                "price": changed(COLUMNS["price"], 7, None),
                "day": pa.array(np.arange(COUNT), pa.timestamp("us")),
                "void": pa.nulls(COUNT, pa.float32()),
            },
        )  # fmt: skip
    files = sorted(map(str, Path("clicks").iterdir()))
    result = neuroshard("init", *files, "--label", "clicked", "--dense", "age", *DIM)

    assert (result.code, result.err) == (0, "passed over: void: no value; day: timestamp[us]\n")
    file = job_of(result.out)
    tables = {(*each.feature_names, each.name)[0]: each for each in file.tables().tables}
    data, model = file.job.spec.data, file.job.spec.model
    assert file.job.metadata.name == "clicks"
    assert (data.format, data.path, data.label_column) == (DataFormat.PARQUET, "clicks/*.parquet", "clicked")
    assert (data.dense_columns, model.num_dense_features, data.missing) == (("price", "age"), 2, "Mean")
    assert {name: each.id_rule for name, each in tables.items()} == {
        "item": IdRule.EXACT,
        "ad id": IdRule.HASH,
        "ad_id": IdRule.EXACT,
        "城市": IdRule.HASH,
        "商店": IdRule.HASH,
        "seen": IdRule.EXACT,
    }
    assert [tables[name].name for name in ("ad_id", "ad id", "城市", "商店")] == ["ad_id", "ad_id_2", "__", "___2"]
    assert all(each.reuse_histogram is not None for each in tables.values())
    require_readable(file.job, file.tables(), root=Path())
    assert neuroshard("validate", "job.yaml").code == 0
    gpus = ("--devices", 4, "--device-type", "h100-80gb", "--set", "spec.planner.algorithm=DimGreedy")
    assert neuroshard("plan", "job.yaml", *gpus).code == 0


@pytest.mark.usefixtures("folder")
def test_the_lines_for_a_cluster_are_a_comment_away(neuroshard: Any) -> None:
    """With their comment signs removed, the job asks for 8 GPUs and has its volumes."""
    log()
    text = neuroshard("init", "log.parquet", *DIM).out
    commented = re.compile(r"^( *)# (resourcesPerNode|image|persistentVolumeClaim|checkpoint):", re.MULTILINE)
    uncommented = commented.sub(r"\1\2:", text)
    spec = job_of(uncommented.replace("numProcPerNode: 1", "numProcPerNode: gpu")).job.spec

    assert len(parse_manifests(text, where="job")) == 2
    assert (spec.trainer.devices_per_node, spec.data.persistent_volume_claim is None) == (8, False)
    assert spec.trainer.image is not None
    assert spec.checkpoint.persistent_volume_claim is not None


@pytest.mark.parametrize(("count", "batch_size"), [(400, 2), (20_000, 128), (1_000_000, 8192)])
@pytest.mark.usefixtures("folder")
def test_small_data_has_small_batches(neuroshard: Any, count: int, batch_size: int) -> None:
    """So that an epoch has a hundred steps; large data has those of public trainings, and wider layers."""
    ids = np.resize(COLUMNS["item"], count).astype(np.int32)
    columns = {"label": ids % 2, "item": ids, "price": (ids / 2).astype(np.float32)}
    pq.write_table(pa.table(columns), "log.parquet")
    model = job_of(neuroshard("init", "log.parquet", *DIM).out).job.spec.model

    assert model.batch_size_per_device == batch_size
    assert model.over_arch_layer_sizes == ((512, 512, 256) if count >= 1_000_000 else (256, 64))


@given(
    value=st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["yes", "1e3", "~", "a: b"])
)
def test_any_name_is_the_same_after_it_was_written(value: str) -> None:
    """Of a column in any script, with quotes, line breaks, and words that YAML reads as something else."""
    assert yaml.safe_load(f"{{names: {scalar([value])}}}  # comment") == {"names": [value]}


@pytest.mark.usefixtures("folder")
def test_a_job_is_written_without_torch() -> None:
    """A machine that holds logs often has no GPU; the extra `data` is a hundredth of the extra `run`."""
    log()
    code = (
        "import sys\n"
        "for name in ('torch', 'torchrec', 'matplotlib', 'fbgemm_gpu'): sys.modules[name] = None\n"
        "from neuroshard_cli.main import main\n"
        "sys.argv = ['neuroshard', 'init', 'log.parquet', '--embedding-dim', '16']\n"
        "main()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr
    assert job_of(found.stdout).job.spec.data.path == "log.parquet"


def criteo_text() -> Path:
    """Write a day of Criteo's text."""
    return Path(criteo_file(Path(), 300).place)


def criteo_binary() -> Path:
    """Write a day of Criteo's arrays."""
    criteo_arrays(Path(), 300)
    return next(Path().glob("*_dense.npy"))


def npz() -> Path:
    """Write an archive of arrays."""
    arrays: dict[str, Any] = {"label": COLUMNS["label"], "dense": RNG.random((COUNT, 3))}
    np.savez("log.npz", **arrays, **{"item.values": COLUMNS["item"], "item.lengths": np.ones(COUNT, int)})
    return Path("log.npz")


def csv() -> Path:
    """Write lines with a header, and one empty cell."""
    rows = [f"{label},i{item},{price:.3f}" for label, item, price in zip(*COLUMNS.values(), strict=True)]
    Path("log.csv").write_text("\n".join(["label,item,price", *rows[:-1], "0,,", ""]), encoding="utf-8")
    return Path("log.csv")


@pytest.mark.parametrize(
    ("made", "data_format", "counts", "missing"),
    [
        (criteo_text, DataFormat.CRITEO_TSV, (26, 13), None),
        (criteo_binary, DataFormat.CRITEO_BINARY, (26, 13), None),
        (npz, DataFormat.NPZ, (1, 3), None),
        (csv, DataFormat.CSV, (1, 1), "Mean"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_every_format_of_files_becomes_a_job(
    neuroshard: Any, made: Callable[[], Path], data_format: DataFormat, counts: tuple[int, int], missing: str | None
) -> None:
    """With the rules, the label, and the dense features of the format."""
    result = neuroshard("init", made(), *DIM)
    file = job_of(result.out)

    assert (result.code, file.job.spec.data.format, file.job.spec.data.missing) == (0, data_format, missing)
    assert "passed over" not in result.err
    assert (len(file.tables().tables), file.job.spec.model.num_dense_features) == counts


@pytest.mark.parametrize("columns", [{}, {"price": [None] * COUNT}])
@pytest.mark.usefixtures("folder")
def test_a_log_of_ids_alone_is_a_job_without_dense_features(neuroshard: Any, columns: dict[str, Any]) -> None:
    """Also where the only column of fractions has no value, which is reported."""
    table = pa.table({"label": COLUMNS["label"], "item": COLUMNS["item"], **columns})
    if columns:
        table = table.set_column(2, "price", table["price"].cast(pa.float64()))
    pq.write_table(table, "log.parquet")

    result = neuroshard("init", "log.parquet", *DIM)
    spec = job_of(result.out).job.spec

    assert (result.code, spec.model.num_dense_features, spec.data.dense_columns) == (0, 0, None)
    assert ("passed over: price: no value" in result.err) is bool(columns)


DENSE = "is it a dense feature? write plain numbers, and nothing where one is missing, or give --ignore price"
QUESTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "null in words": (lambda: csv_log("0.5", "NULL", "1.5"), f"price: has texts such as '0.5' and 'NULL'; {DENSE}"),
    "percent": (lambda: csv_log("12 %", "7.25%"), f"price: has texts such as '12 %'; {DENSE}"),
    "thousands": (lambda: csv_log('"1,000.5"', "2.5"), f"price: has texts such as '1,000.5'; {DENSE}"),
    "lists": (lambda: csv_log("a|b", "c|d|e", "f"), "price: has texts such as 'a|b'; is it a column of lists?"),
    "lists as JSON": (lambda: csv_log('"[1, 2]"', "[3]"), "has texts such as '[1, 2]'; is it a column of lists?"),
    "times": (lambda: csv_log("2026-01-31 12:00:00", "2026-02-01"), "passed over: price: times"),
    "no name": (lambda: csv_log("a", "b", header="label,item,"), "passed over: '': no name"),
    "ids next to nulls": (
        lambda: log(price=None, shop=[float(row) if row % 3 else None for row in range(COUNT)]),
        "shop: holds fractions by its type, and all values are whole numbers; is it a column of ids next to nulls",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.usefixtures("folder")
def test_a_column_that_is_unlike_its_use_is_told(neuroshard: Any, kind: str) -> None:
    """On stderr, and questions in the job, too; the job is valid as it is."""
    write, sentence = QUESTIONS[kind]
    write()
    result = neuroshard("init", next(Path().iterdir()), *DIM)

    assert result.code == 0, result.err
    assert sentence in result.err
    assert sentence.removeprefix("passed over: ") in result.out
    job_of(result.out)


@pytest.mark.usefixtures("folder")
def test_every_table_has_a_name_that_can_be_trained(neuroshard: Any) -> None:
    """Columns are named after attributes of torch's modules, with dots, and in other scripts."""
    log(**{"type": COLUMNS["item"], "user.id": COLUMNS["item"], "user_id": COLUMNS["item"], "日": COLUMNS["item"]})
    names = {
        table.features: table.name for table in job_of(neuroshard("init", "log.parquet", *DIM).out).tables().tables
    }

    assert names[("type",)] == "type_2"
    assert (names["user.id",], names["user_id",], names["日",]) == ("user_id_2", "user_id", "_")


@pytest.mark.usefixtures("folder")
def test_sessions_are_in_the_job(neuroshard: Any) -> None:
    """With the repeats of their lists, which the plan uses."""
    columns: dict[str, Any] = {
        "session": np.arange(COUNT) // 8,
        "at": np.arange(COUNT),
        "seen": [[row // 8] for row in range(COUNT)],
    }
    log(**columns)
    result = neuroshard("init", "log.parquet", "--session", "session", "--time", "at", *DIM)
    file = job_of(result.out)

    assert (file.job.spec.data.session_column, file.job.spec.data.time_column) == ("session", "at")
    assert file.tables().session_run == file.job.spec.experimental.data.session_run
    assert {each.name: each.duplication_factor for each in file.tables().tables}["seen"] == 8.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--label", "clicked"), "column 'clicked': is missing; hint: choose among label, item, price"),
        (("--label", "price", "--dense", "label"), "row 0, column price: the label must be 0 or 1"),
        (("--dense", "label"), "column 'label': is the label, which no feature may be; hint: leave --dense label out"),
        (("--dense", "item", "--feature", "item"), "column 'item': is a feature and dense"),
        (("--time", "item"), "--time: orders the samples of a session; hint: give --session too"),
        (("--session", "label"), "column 'label': is the label; hint: give --session another column"),
        (("--session", "item", "--time", "item"), "column 'item': is the session; hint: give --time another column"),
        (("--format", "CriteoTSV"), "log.parquet line 1"),
        (("--max-samples", "0"), "--max-samples: "),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_question_that_the_data_does_not_answer_is_a_sentence(
    neuroshard: Any, options: tuple[str, ...], message: str
) -> None:
    """With the option that answers it; no job is written."""
    log()
    result = neuroshard("init", "log.parquet", *options, *DIM)

    assert (result.code, result.out) == (ExitCode.INVALID_INPUT, "")
    assert message in result.err.replace("\nhint:", "; hint:")


@pytest.mark.usefixtures("folder")
def test_files_that_no_pattern_names_are_refused(neuroshard: Any) -> None:
    """A shell expands a pattern, and the job has one path."""
    for name in ("clicks/0.parquet", "clicks/1.parquet", "clicks/2.parquet"):
        log(name)
    result = neuroshard("init", "clicks/0.parquet", "clicks/1.parquet", *DIM)

    assert (result.code, result.out) == (ExitCode.INVALID_INPUT, "")
    assert "hint: put the pattern in quotes" in result.err


def cut(path: Path) -> None:
    """Leave half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def twice(name: str) -> None:
    """Write a log that has a column twice."""
    columns = {**COLUMNS, f"{name} ": COLUMNS[name]}
    table = pa.table(columns)
    pq.write_table(table.rename_columns([each.strip() for each in table.column_names]), "log.parquet")


def lines(text: str, name: str = "log.csv", *, encoding: str = "utf-8") -> None:
    """Write a text file."""
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(text.encode(encoding))


def other_headers() -> None:
    """Write two files of which the second lacks a column."""
    lines("label,i,price\n0,a,.5\n", "d/a.csv")
    lines("label,i\n0,a\n", "d/b.csv")


IDS: dict[str, Any] = {"x.values": [1], "x.lengths": [1]}
CRITEO_LINE = "\t".join(["1", *["5"] * 13, *["ff"] * 26])
BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "cut Parquet": (lambda: cut(log()), "log.parquet: is not a Parquet file"),
    "empty file": (lambda: lines("", "log.parquet"), "log.parquet: is not a Parquet file"),
    "no rows": (lambda: pq.write_table(pa.table(COLUMNS).slice(0, 0), "log.parquet"), "no rows, expected at least one"),
    "no label": (lambda: log(label=None), "log.parquet: has no column 'label'; hint: name the column of the label"),
    "null label": (
        lambda: log(label=changed(COLUMNS["label"], 217, None)),
        "log.parquet row 217, column label: is null; hint: fill it in or drop the row",
    ),
    "label of 2": (
        lambda: log(label=changed(COLUMNS["label"], 217, 2)),
        "log.parquet row 217, column label: the label must be 0 or 1, found 2; hint: convert the labels",
    ),
    "label of texts": (lambda: log(label=pa.array(["no"] * COUNT)), "column label: is of type string, expected a num"),
    "one class": (lambda: log(label=np.zeros(COUNT, int)), "column label: all 400 labels are 0, so that"),
    "infinite": (
        lambda: log(price=changed(COLUMNS["price"], 333, np.inf)),
        "log.parquet row 333, column price: is inf, expected a finite number of FP32; hint: fix or drop the row",
    ),
    "ids without values": (lambda: log(item=pa.nulls(COUNT, pa.int64())), "feature 'item' has no ids in 400 samples"),
    "no ids": (lambda: log(item=None), "has no column of integers, texts, or lists of them"),
    "mixed types": (
        lambda: (log("d/a.parquet"), log("d/b.parquet", item=pa.array(["a"] * COUNT))),
        "d/b.parquet: column 'item': holds texts, in d/a.parquet integers; hint: write both files with the same types",
    ),
    "dense as texts": (
        lambda: (log("d/a.parquet"), log("d/b.parquet", price=pa.array(["1"] * COUNT))),
        "d/b.parquet, column price: is of type string, expected a number",
    ),
    "column of one file": (
        lambda: (log("d/a.parquet"), log("d/b.parquet", price=None)),
        "d/b.parquet: has no column 'price' (found label, item)",
    ),
    "feature twice": (lambda: twice("item"), "column item: is there 2 times; hint: rename one, or give --ignore item"),
    "label twice": (lambda: twice("label"), "column label: is there 2 times; hint: rename one"),
    "dense twice": (lambda: twice("price"), "column price: is there 2 times; hint: rename one"),
    "empty CSV": (lambda: lines(""), "log.csv: is empty, expected a header and one sample per line"),
    "header alone": (lambda: lines("label,item,price\n"), "log.csv: has a header and no samples"),
    "cut line": (
        lambda: lines("label,item,price\n0,1,0.5\n1,2\n"),
        "log.csv line 3: has 2 columns, the header has 3; hint: quote values",
    ),
    "word for a number": (
        lambda: lines("label,item,price\n" + "0,1,0.5\n" * 1200 + "1,3,cheap\n"),
        "log.csv line 1202: column price: is not a number (found 'cheap'); hint: write a number",
    ),
    "empty label": (
        lambda: lines("label,item,price\n0,1,.5\n,2,.5\n1,1,.5\n,1,.5\n"),
        "log.csv line 3, column label: is missing, as in 2 of 4 samples, and no model learns from a sample without",
    ),
    "spaces next to commas": (
        lambda: lines("label, item, price\n0, 1, .5\n"),
        "log.csv line 1: the name ' item' begins or ends with a space; hint: write no spaces next to separators",
    ),
    "header of tabs": (
        lambda: lines("label\titem\n0\t1\n", "log.tsv"),
        "an empty one is between two tabs; give --format CSV if it is a header",
    ),
    "Latin-1": (lambda: lines("label,item,price\n0,ü,0.5\n", encoding="latin-1"), "log.csv line 2: is not UTF-8"),
    "other header": (
        other_headers,
        "d/b.csv line 1: has no column 'price' (found label, i)",
    ),
    "cut Criteo line": (
        lambda: lines(f"{CRITEO_LINE}\n{CRITEO_LINE[:40]}\n", "log.tsv"),
        "log.tsv line 2: has 19 columns, expected 40",
    ),
    "hash of Criteo": (
        lambda: lines(f"{CRITEO_LINE}\n{CRITEO_LINE.replace('ff', 'xyz', 1)}\n", "log.tsv"),
        "log.tsv line 2: column cat_0: expected a hexadecimal hash of at most 16 digits, found 'xyz'; hint: correct",
    ),
    "labels of NPZ": (
        lambda: np.savez("log.npz", dense=np.ones((1, 1)), label=["a"], **IDS),
        "log.npz: label: is <U1[1], expected numbers [samples], for 1 samples; hint: write it so",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.usefixtures("folder")
def test_a_broken_log_is_a_sentence_with_its_place(neuroshard: Any, kind: str) -> None:
    """File, row or line, and column; no job is written, and nothing next to the data."""
    write, message = BROKEN[kind]
    write()
    written = sorted(Path().rglob("*"))
    data = next(each for each in written if each.name != "d" or each.is_dir())
    result = neuroshard("init", data, *DIM)

    assert (result.code, result.out) == (ExitCode.INVALID_INPUT, "")
    assert message in result.err.replace("\nhint:", "; hint:")
    assert "\nhint: " in result.err
    assert sorted(Path().rglob("*")) == written


@pytest.mark.usefixtures("folder")
def test_more_tables_than_a_config_map_holds_are_refused(neuroshard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the way that has room for them."""
    monkeypatch.setattr("neuroshard_cli.shared.new_job.MAX_CONFIG_MAP_BYTES", 300)
    columns = {f"item_{number}": np.arange(4) for number in range(3)}
    pq.write_table(pa.table({"label": [0, 1, 0, 1], "price": np.ones(4), **columns}), "log.parquet")
    result = neuroshard("init", "log.parquet", *DIM)

    assert (result.code, result.out) == (ExitCode.INVALID_INPUT, "")
    assert "and a ConfigMap holds 300\nhint: write them with `neuroshard stats --out tables.json`" in result.err


def test_the_job_of_a_name_is_valid() -> None:
    """Whatever the data is called."""
    names = {
        place: job_name(place) for place in ("day_*.tsv", "Clicks/*.parquet", "2024/", "s3://b/日/*", "*", "x" * 60)
    }
    assert names["day_*.tsv"] == "day"
    assert names["Clicks/*.parquet"] == "clicks"
    assert names["2024/"] == "job-2024"
    for name in names.values():
        DLRMTrainingJob.from_data(
            {
                "apiVersion": "training.neuroshard.dev/v1alpha1",
                "kind": "DLRMTrainingJob",
                "metadata": {"name": name},
                "spec": {"model": {"embeddingTables": [{"name": "a", "numEmbeddings": 1, "embeddingDim": 4}]}},
            }
        )

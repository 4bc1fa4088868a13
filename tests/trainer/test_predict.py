"""Raw rows to logits by an export, as the trainer makes them of the same rows."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.preprocessing import IdForm
from neuroshard_api.documents.tables import IdRule, Table
from neuroshard_api.job.exported_model import ExportedModel
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.main import run as neuroshard
from neuroshard_trainer import predict
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.criteo_lines import COLUMNS
from neuroshard_trainer.data.movielens import MovieLensSource
from neuroshard_trainer.data.movielens import preprocessing as movielens_preprocessing
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.export import export
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.predict import Predictor, table_rows, transformed
from neuroshard_trainer.serving import QuantizedType
from neuroshard_trainer.training import TrainingLoop
from support import builders
from support.trainer.data_builders import MOVIELENS_FILES
from support.trainer.trainer_builders import plan_of, write_plan

Run = Callable[..., ExitCode]
Columns = Mapping[str, list[Any]]
NUM_HELD_OUT = 40
TABLES = (
    builders.table("cat_0", num_embeddings=60, embedding_dim=32),
    builders.table("cat_1", num_embeddings=7, embedding_dim=16),
)


@dataclass(frozen=True)
class RawData:
    """Rows to train on and rows to evaluate, as files, and the second ones as a server would get them."""

    spec: Mapping[str, Any]
    num_dense: int
    held_out: Columns
    tables: Sequence[Table] = TABLES
    """Of the job; the plan has TABLES."""


def criteo_text(folder: Path, rng: np.random.Generator) -> RawData:
    """Write lines with negative, missing, and large numbers, and hashes of up to 16 digits."""
    for name, count in (("train", 120), ("held_out", NUM_HELD_OUT)):
        numbers = [[_some(rng, str(int(10 ** rng.uniform(0, 7)) - 3)) for _ in range(13)] for _ in range(count)]
        hashes = [
            [_some(rng, f"{int(rng.integers(2**63)):x}"[: rng.integers(1, 17)]) for _ in range(26)] for _ in numbers
        ]
        rows = [[str(rng.integers(2)), *a, *b] for a, b in zip(numbers, hashes, strict=True)]
        (folder / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    held_out = {name: [row[at] or None for row in rows] for at, name in enumerate(COLUMNS)}
    integers = {name: [each and int(each) for each in cells] for name, cells in held_out.items() if "int" in name}
    data = {"format": "CriteoTSV", "path": "train.tsv", "evaluationPath": "held_out.tsv"}
    return RawData(data, 13, {**held_out, **integers})


def _some(rng: np.random.Generator, cell: str) -> str:
    return cell if rng.random() < 0.8 else ""


def criteo_arrays(folder: Path, rng: np.random.Generator) -> RawData:
    """Write arrays with hashes that are stored as negative integers."""
    for name, count in (("train", 120), ("held_out", NUM_HELD_OUT)):
        dense = rng.normal(size=(count, 13)).astype(np.float32)
        sparse = rng.integers(-(2**31), 2**31, size=(count, 26)).astype(np.int32)
        np.save(folder / f"{name}_dense.npy", dense)
        np.save(folder / f"{name}_sparse.npy", sparse)
        np.save(folder / f"{name}_labels.npy", rng.integers(2, size=count))
    held_out = {f"int_{at}": dense[:, at].tolist() for at in range(13)}
    held_out |= {f"cat_{at}": sparse[:, at].tolist() for at in range(26)}
    data = {"format": "CriteoBinary", "path": "train_dense.npy", "evaluationPath": "held_out_dense.npy"}
    return RawData(data, 13, held_out)


def parquet(folder: Path, rng: np.random.Generator) -> RawData:
    """Write ids, lists of ids, and nulls, and dense features under names of their own."""
    for name, count in (("train", 120), ("held_out", NUM_HELD_OUT)):
        lists = [rng.integers(7, size=rng.integers(4)).tolist() for _ in range(count)]
        columns = {
            "clicked": rng.integers(2, size=count).tolist(),
            "price": (100 * rng.random(count)).tolist(),
            "age": rng.integers(100, size=count).tolist(),
            "cat_0": [int(each) if rng.random() < 0.8 else None for each in rng.integers(60, size=count)],
            "cat_1": [each if rng.random() < 0.8 else None for each in lists],
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=16)
    files = {"path": "train.parquet", "evaluationPath": "held_out.parquet"}
    return RawData(
        {"format": "Parquet", **files, "labelColumn": "clicked", "denseColumns": ["price", "age"]}, 2, columns
    )


def ids_alone(folder: Path, rng: np.random.Generator) -> RawData:
    """Write ids and lists of ids, and no column of numbers."""
    raw = parquet(folder, rng)
    for name in ("train", "held_out"):
        log = pq.read_table(folder / f"{name}.parquet")
        pq.write_table(log.drop_columns(["price", "age"]), folder / f"{name}.parquet")
    held_out = {name: raw.held_out[name] for name in ("cat_0", "cat_1")}
    return RawData({key: value for key, value in raw.spec.items() if key != "denseColumns"}, 0, held_out)


def parquet_of_texts(folder: Path, rng: np.random.Generator) -> RawData:
    """Write texts, of which one is empty, lists of integers that number no rows, and nulls, also in dense columns."""
    for name, count in (("train", 120), ("held_out", NUM_HELD_OUT)):
        lists = [rng.integers(-(2**62), 2**62, size=rng.integers(4)).tolist() for _ in range(count)]
        columns = {
            "clicked": rng.integers(2, size=count).tolist(),
            "price": [float(each) if rng.random() < 0.8 else float("nan") for each in 100 * rng.random(count)],
            "age": [int(each) if rng.random() < 0.8 else None for each in rng.integers(100, size=count)],
            "cat_0": [rng.choice(["", "größe", "sku-1", "7"]) if rng.random() < 0.8 else None for _ in range(count)],
            "cat_1": [each if rng.random() < 0.8 else None for each in lists],
        }
        columns |= {"cat_0": [None if each is None else str(each) for each in columns["cat_0"]]}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=16)
    files = {"path": "train.parquet", "evaluationPath": "held_out.parquet", "missing": "Mean"}
    tables = tuple(table.model_copy(update={"id_rule": IdRule.HASH}) for table in TABLES)
    spec = {"format": "Parquet", **files, "labelColumn": "clicked", "denseColumns": ["price", "age"]}
    return RawData(spec, 2, columns, tables)


def csv(folder: Path, rng: np.random.Generator) -> RawData:
    """Write texts that look like integers, negative integers, and empty cells."""
    for name, count in (("train", 120), ("held_out", NUM_HELD_OUT)):
        columns = {
            "clicked": [str(each) for each in rng.integers(2, size=count)],
            "price": [_some(rng, f"{each:.3f}") for each in 100 * rng.random(count)],
            "cat_0": [_some(rng, f"00{each}") for each in rng.integers(100, size=count)],
            "cat_1": [_some(rng, str(each)) for each in rng.integers(-50, 50, size=count)],
        }
        lines = [",".join(columns), *(",".join(cells) for cells in zip(*columns.values(), strict=True))]
        (folder / f"{name}.csv").write_text("".join(f"{line}\n" for line in lines))
    held_out: dict[str, list[Any]] = {
        **columns,
        "price": [float(each) if each else None for each in columns["price"]],
        "cat_1": [int(each) if each else None for each in columns["cat_1"]],
    }
    rules = (IdRule.HASH, IdRule.MODULO)
    tables = tuple(table.model_copy(update={"id_rule": rule}) for table, rule in zip(TABLES, rules, strict=True))
    files = {"path": "train.csv", "evaluationPath": "held_out.csv", "missing": "Zero"}
    spec = {"format": "CSV", **files, "labelColumn": "clicked", "denseColumns": ["price"]}
    return RawData(spec, 1, held_out, tables)


def exported(run: Run, folder: Path, raw: RawData, **options: Any) -> ExportedModel:
    """Train on raw data, and export the model to ``out``."""
    write_plan(folder, plan_of(tables=TABLES))
    spec = {
        "tables": raw.tables,
        "model": {"numDenseFeatures": raw.num_dense},
        "data": {**raw.spec, "numSamples": None},
        "training": {"embeddingLearningRate": "0.5"},
    }
    assert run(**spec) == ExitCode.OK
    plan = Plan.read(folder / "plan.json")
    return export(read_job(folder / "job.yaml"), plan, folder / "run", folder / "out", **options)


def module_of(folder: Path) -> ModuleType:
    """Import ``predict.py`` of an export."""
    spec = importlib.util.spec_from_file_location("predict_of_export", folder / "predict.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "raw_data", [criteo_text, criteo_arrays, parquet, ids_alone, parquet_of_texts, csv], ids=lambda each: each.__name__
)
def test_raw_rows_have_the_trainers_logits(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw_data: Callable[[Path, Any], RawData]
) -> None:
    """Of every held-out row, within 1e-6, through the files of the export alone."""
    seen: list[torch.Tensor] = []
    logits_of = TrainingLoop._logits

    def logits(loop: TrainingLoop, batch: Batch) -> torch.Tensor:
        found = logits_of(loop, batch)
        if not torch.is_grad_enabled():
            seen.append(found[: batch.num_real])
        return found

    monkeypatch.setattr(TrainingLoop, "_logits", logits)
    raw = raw_data(tmp_path, np.random.default_rng(1))

    exported(run, tmp_path, raw)
    found = module_of(tmp_path / "out").Predictor(tmp_path / "out").logits(raw.held_out)

    expected = torch.cat(seen).numpy()
    assert len(found) == NUM_HELD_OUT
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.processes
def test_lines_of_json_have_logits_by_the_command(run: Run, tmp_path: Path) -> None:
    """The file is run as a program next to the export; the quantized model needs no package of ours."""
    raw = criteo_text(tmp_path, np.random.default_rng(1))
    exported(run, tmp_path, raw, quantized_type=QuantizedType.FP16)
    rows = [dict(zip(raw.held_out, cells, strict=True)) for cells in zip(*raw.held_out.values(), strict=True)]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    blocked = "import sys; sys.modules |= {'neuroshard_trainer': None, 'neuroshard_api': None}"
    code = f"{blocked}; import runpy; runpy.run_path('out/predict.py', run_name='__main__')"

    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, "rows.jsonl", "--export", "out", "--quantized"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    expected = Predictor(tmp_path / "out").logits(raw.held_out)
    np.testing.assert_allclose([float(line) for line in ended.stdout.split()], expected, atol=2e-3)


def test_wrong_rows_are_named(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By row and column, with the value; nothing is filled in that training would refuse."""
    raw = parquet(tmp_path, np.random.default_rng(1))
    exported(run, tmp_path, raw)
    good = {"price": 1.0, "age": 7, "cat_0": 3, "cat_1": [1, 2]}
    for row, sentence in (
        (good | {"price": None}, "row 2, column price: is missing"),
        (good | {"age": "old"}, "row 2, column age: must be a number (found 'old')"),
        (good | {"cat_0": 60}, "row 2, column cat_0: id 60 is not a row of table 'cat_0' (found 60 rows, from 0 on)"),
        (good | {"cat_1": ["a"]}, "row 2, column cat_1: must be an integer (found 'a')"),
        ({"price": 1.0}, "row 2: has no column 'age'; hint: give it, with null for a missing value"),
    ):
        (tmp_path / "rows.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n")

        assert predict.main([str(tmp_path / "rows.jsonl"), "--export", str(tmp_path / "out")]) == ExitCode.INVALID_INPUT
        assert f"error: {sentence}" in capsys.readouterr().err

    with pytest.raises(ValueError, match=r"has no quantized\.pt; hint: export with --quantized"):
        Predictor(tmp_path / "out", quantized=True)


def test_ids_that_are_hashed_are_what_the_data_has(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of CSV is not an integer, and integers are of one type; without the package the hint names it."""
    raw = csv(tmp_path, np.random.default_rng(1))
    exported(run, tmp_path, raw)
    predictor = Predictor(tmp_path / "out")

    def problem(**columns: list[Any]) -> str:
        good: dict[str, list[Any]] = {"price": [1.0] * 2, "cat_0": ["7"] * 2, "cat_1": [7] * 2}
        with pytest.raises(ValueError, match="column") as caught:
            predictor.logits({**good, **columns})
        return str(caught.value)

    assert "row 1, column cat_0: must be a text, which is hashed as it is (found 7)" in problem(cat_0=["7", 7])
    assert f"row 0, column cat_1: must be an integer of 64 bits (found {2**64})" in problem(cat_1=[2**64, 1])
    assert "column cat_1: has ids below 0 and ids from 2 ** 63 on" in problem(cat_1=[-1, 2**63])
    assert len(predictor.logits({"price": [1.0] * 2, "cat_0": ["7", None], "cat_1": [2**64 - 1, 7]})) == 2
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert "column cat_0: its ids are texts, which xxhash hashes" in problem()


def test_texts_and_integers_of_columns_are_not_confused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their hashes differ: a row, data to evaluate, and a resumed training with the other type are refused."""
    raw = parquet_of_texts(tmp_path, np.random.default_rng(1))
    forms = [each.id_form for each in exported(run, tmp_path, raw).preprocessing.lookups]
    predictor = Predictor(tmp_path / "out")
    good: dict[str, list[Any]] = {"price": [1.0], "age": [7], "cat_0": ["7"], "cat_1": [[7]]}
    assert forms == [IdForm.TEXT, IdForm.INTEGER]
    assert len(predictor.logits({**good, "cat_0": [""]})) == 1
    for column, value, problem in (
        ("cat_0", 7, "must be a text, which is hashed as it is (found 7)"),
        ("cat_1", ["7"], "must be an integer (found '7')"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"row 0, column {column}: {problem}")):
            predictor.logits({**good, column: [value]})

    log = pq.read_table(tmp_path / "train.parquet")
    pq.write_table(log.set_column(3, "cat_0", pa.array([7] * len(log))), tmp_path / "train.parquet")
    capsys.readouterr()
    assert neuroshard(["evaluate", str(tmp_path / "out"), str(tmp_path / "train.parquet")]) == ExitCode.INVALID_INPUT
    assert "DATA: column 'cat_0': holds integers, the model was trained on texts" in capsys.readouterr().err
    spec = {"tables": raw.tables, "model": {"numDenseFeatures": 2}, "training": {"epochs": 2}}
    data = {**raw.spec, "numSamples": None}
    assert run(**spec, data=data) == ExitCode.INVALID_INPUT
    assert "evaluationPath: column 'cat_0': holds texts, in spec.data.path integers" in capsys.readouterr().err
    pq.write_table(pq.read_table(tmp_path / "train.parquet"), tmp_path / "held_out.parquet")
    assert run(**spec, data=data) == ExitCode.INVALID_INPUT
    assert 'was trained with spec.data (features of texts) = ["cat_0"], the job has None' in capsys.readouterr().err


def test_movielens_has_the_numbers_of_its_preprocessing(tmp_path: Path) -> None:
    """Age and time of a rating, as its reader and a server compute them."""
    for name, text in MOVIELENS_FILES.items():
        (tmp_path / name).write_text(text)
    features = features_of((builders.table("user_id"),))
    age, time = movielens_preprocessing(features).dense

    found = MovieLensSource(tmp_path, features, num_dense=2).take(0, np.arange(3)).dense

    for column, rule, raw in ((0, age, [53, 24, 53]), (1, time, [881250949, 881250999, 881250949])):
        expected = transformed(np.array(raw), rule.transformation, offset=rule.offset, divisor=rule.divisor)
        assert found[:, column].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (np.array([-1, 7, 2**62], dtype=np.int64), [9, 7, 2**62 % 10]),
        (np.array([2**64 - 1, 7], dtype=np.uint64), [(2**64 - 1) % 10, 7]),
        (np.array([-1], dtype=np.int32), [9]),
    ],
    ids=["signed", "unsigned", "short"],
)
def test_a_remainder_is_from_zero_on(ids: Any, expected: list[int]) -> None:
    """Of integers with a sign as of hashes of 64 bits."""
    assert table_rows(ids, "Modulo", 10).tolist() == expected


def test_readers_start_without_torchrec() -> None:
    """They import the formulas, and the class next to them imports what computes when it does."""
    code = (
        "import neuroshard_trainer.data.formats, sys; assert not {'torch', 'torchrec', 'fbgemm_gpu'} & set(sys.modules)"
    )

    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0

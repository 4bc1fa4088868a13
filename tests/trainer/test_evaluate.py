"""Metrics of exports by ``neuroshard evaluate``, next to those of their trainings."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.documents.model_evaluation import ModelEvaluation
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.process.errors import InputError
from neuroshard_cli.main import run as command
from neuroshard_trainer.export import export
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.serving import QuantizedType
from pyarrow import csv
from support.trainer.data_builders import CRITEO_TABLES, criteo_line, npz_arrays
from support.trainer.trainer_builders import TABLES, plan_of, write_plan

NAMES = [table.name for table in TABLES]


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def neuroshard(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Return a function that runs ``neuroshard evaluate`` with these arguments."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = command(["evaluate", *map(str, arguments)])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@pytest.fixture
def exported(run: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """Train on data, and export the model."""

    def make(*, quantized: bool = False, **spec: Any) -> Path:
        assert run(**spec) == 0
        kind = QuantizedType.INT8 if quantized else None
        plan = Plan.read(tmp_path / "plan.json")
        export(read_job(tmp_path / "job.yaml"), plan, tmp_path / "run", tmp_path / "out", quantized_type=kind)
        return tmp_path / "out"

    return make


def write_npz(path: Path, *, count: int = 100, **arrays: Any) -> Path:
    """Write samples for the small job."""
    made = npz_arrays(count, NAMES, num_dense=3) | {"label": np.arange(count) // 3 % 2, **arrays}
    np.savez(path, **{name: each % 7 if name.endswith("values") else each for name, each in made.items()})
    return path


NPZ = {"format": "NPZ", "path": "data.npz", "evaluationPath": "held_out.npz", "numSamples": None}


@pytest.mark.slow
def test_an_export_has_the_metrics_of_its_training(
    exported: Callable[..., Path], neuroshard: Callable[..., Result], tmp_path: Path
) -> None:
    """On the data that the trainer evaluated with, of a quantized model nearly."""
    write_npz(tmp_path / "data.npz")
    held_out = write_npz(tmp_path / "held_out.npz", count=60)
    folder = exported(data=NPZ, quantized=True)

    found, quantized = (
        json.loads(neuroshard(export, held_out, "--json").out) for export in (folder, folder / "quantized.pt")
    )

    trained = TrainingProgress.read(tmp_path / "run" / "progress.json").metrics
    assert found["num_samples"] == 60
    assert found["auc"] == pytest.approx(trained["auc"], abs=1e-4)
    assert found["normalized_entropy"] == pytest.approx(trained["normalized_entropy"], abs=1e-6)
    assert (found["tables"], quantized["tables"]) == ("FP32", "INT8")
    assert quantized["loss"] == pytest.approx(found["loss"], rel=0.01)
    assert quantized["loss"] != found["loss"]

    none = write_npz(tmp_path / "zeros.npz", count=20, label=np.zeros(20))
    shown = neuroshard(folder, none, "--out", tmp_path / "found.json")

    assert shown.code == 0
    assert "none: all 20 labels are 0" in shown.out
    assert ModelEvaluation.read(tmp_path / "found.json").no_auc == "all 20 labels are 0"


@pytest.mark.slow
def test_data_that_is_preprocessed_otherwise_is_refused(
    exported: Callable[..., Path], neuroshard: Callable[..., Result], tmp_path: Path
) -> None:
    """Another transformation makes another model of it, which no metric would tell."""
    write_plan(tmp_path, plan_of(tables=CRITEO_TABLES))
    (tmp_path / "day_0.tsv").write_text("".join(f"{criteo_line(number)}\n" for number in range(64)))
    folder = exported(
        tables=CRITEO_TABLES,
        model={"numDenseFeatures": 13},
        data={"format": "CriteoTSV", "path": "day_0.tsv", "numSamples": None},
    )

    other = neuroshard(folder, tmp_path / "day_0_dense.npy")
    missing = neuroshard(folder, tmp_path / "none.tsv")
    no_quantized = neuroshard(folder / "quantized.pt", tmp_path / "day_0.tsv")

    assert (other.code, missing.code, no_quantized.code) == (2, 2, 2)
    assert "the reader of CriteoBinary has Identity for dense feature 0, the model was trained with Log1p" in other.err
    assert f"DATA: {tmp_path / 'none.tsv'} does not exist" in missing.err
    assert "has no quantized.pt\nhint: export with --quantized INT8" in no_quantized.err


@pytest.mark.slow
def test_missing_numbers_are_filled_as_in_training(
    exported: Callable[..., Path], neuroshard: Callable[..., Result], tmp_path: Path
) -> None:
    """With the means of the training, and not with those of the data; a reader that refuses them is another one."""
    rng = np.random.default_rng(1)
    for name, offset in (("train", 0), ("held_out", 3)):
        dense = {f"dense_{at}": rng.normal(size=100) + offset for at in range(3)}
        columns = {each: np.where(rng.random(100) < 0.6, values, np.nan) for each, values in dense.items()}
        columns |= {each: rng.integers(7, size=100) for each in NAMES}
        log = pa.table({"label": rng.integers(2, size=100), **columns})
        pq.write_table(log, tmp_path / f"{name}.parquet")
        csv.write_csv(log, tmp_path / f"{name}.csv")
    files = {"path": "train.parquet", "evaluationPath": "held_out.parquet", "numSamples": None}
    folder = exported(data={"format": "Parquet", **files, "missing": "Mean"})

    found = json.loads(neuroshard(folder, tmp_path / "held_out.parquet", "--json").out)
    cells = json.loads(neuroshard(folder, tmp_path / "held_out.csv", "--json").out)
    other = neuroshard(folder, write_npz(tmp_path / "data.npz"))

    trained = TrainingProgress.read(tmp_path / "run" / "progress.json").metrics
    assert found["normalized_entropy"] == pytest.approx(trained["normalized_entropy"], abs=1e-6)
    assert cells["loss"] == found["loss"]
    assert other.code == 2
    assert "the reader of NPZ has Identity for dense feature 0, the model was trained with Identity" in other.err
    assert "where it is missing of Parquet" in other.err

    (tmp_path / "run" / "data" / "dense-means.json").unlink()
    with pytest.raises(InputError, match=r"dense-means.json: has no mean of column 'dense_0'.*name the run directory"):
        export(read_job(tmp_path / "job.yaml"), Plan.read(tmp_path / "plan.json"), tmp_path / "run", tmp_path / "out")

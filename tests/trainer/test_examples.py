"""The examples are trained, shortened to a few rows, steps, and narrow layers, on data files of ten samples."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import yaml
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.table_files import read_table_set
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.__main__ import main
from support.trainer.data_builders import MOVIELENS_FILES, criteo_arrays, criteo_file
from support.trainer.trainer_builders import ALONE, plan_of, write_job, write_plan

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("0*.yaml"))
MAX_ROWS = 3000
BATCH_SIZE = 2


def shortened(example: Path, **data: Any) -> dict[str, Any]:
    """Return an example for one process, with a few samples and steps, and few weights in Wukong's layers.

    ``data`` changes its spec.data.
    """
    job: dict[str, Any] = yaml.safe_load(example.read_text(encoding="utf-8"))
    spec = job["spec"]
    if "wukong" in spec["model"]:
        spec["model"]["wukong"] = {"numInteractions": 4, "lowRankDim": 4, "layerSizes": [32]}
    spec["model"]["batchSizePerDevice"] = BATCH_SIZE
    spec["trainer"] = {"numProcPerNode": 1}
    spec["data"] = {**spec.get("data", {}), **data}
    few = spec.setdefault("experimental", {})
    few["data"] = {**few.get("data", {}), "readerProcesses": 0}
    if spec["data"].get("format", "Synthetic") == "Synthetic":
        spec["data"]["numSamples"] = 10
    spec["training"] = {**spec.get("training", {}), "maxSteps": 2, "evalEverySteps": 1}
    return job


def tables_of(job: dict[str, Any], workload: str) -> list[Table]:
    """Return an example's tables with few rows; those of the workload where it takes them from a ConfigMap."""
    inline = DLRMTrainingJob.from_data(job, where="job").spec.model.inline_tables("job")
    found = inline or read_table_set(ROOT / "planner/neuroshard_planner/workloads" / f"{workload}.yaml")
    return [each.model_copy(update={"num_embeddings": min(each.num_embeddings, MAX_ROWS)}) for each in found.tables]


def with_rows(job: dict[str, Any], tables: list[Table]) -> dict[str, Any]:
    """Return a job whose own tables have these rows."""
    for own, table in zip(job["spec"]["model"].get("embeddingTables", ()), tables, strict=False):
        own["numEmbeddings"] = table.num_embeddings
    return job


def write_data(folder: Path, tables: list[Table]) -> None:
    """Write ten samples of each format that an example reads."""
    (folder / "ml-100k").mkdir()
    for name, text in MOVIELENS_FILES.items():
        (folder / "ml-100k" / name).write_text(text)
    hots = [round(table.pooling_factor) for table in tables] if len(tables) == 26 else [1] * 26
    (folder / "criteo").mkdir()
    for day in ("day_0", "day_23"):
        criteo_arrays(folder / "criteo", day=day, hots=hots)
    criteo_file(folder, 10, "criteo.tsv")


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any], workload: str) -> ExitCode:
    """Train a job on ten samples, under a plan for its tables."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    tables = tables_of(job, workload)
    write_data(folder, tables)
    plan = write_plan(folder, plan_of(tables=tables, batch_size_per_device=BATCH_SIZE))
    try:
        return main([
            str(write_job(folder, with_rows(job, tables))), "--plan", str(plan), "--run-dir", str(folder / "run")
        ])  # fmt: skip
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_trains(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the features that its data has, lookups as its plan was made for, and an evaluation."""
    job = shortened(path)

    assert trained(tmp_path, monkeypatch, job, "mlperf-dlrm-dcnv2") == ExitCode.OK

    done = TrainingProgress.read(tmp_path / "run" / "progress.json")
    assert done.step >= 1
    if "criteo" in path.stem:
        assert "lookups per sample" not in caplog.text


@pytest.mark.slow
def test_one_hot_data_under_a_multi_hot_plan_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sentence has both numbers of lookups."""
    (example,) = (path for path in EXAMPLES if "criteo" in path.stem)
    job = shortened(example, format="CriteoTSV", path="criteo.tsv")
    del job["spec"]["data"]["evaluationPath"]

    assert trained(tmp_path, monkeypatch, job, "mlperf-dlrm-dcnv2") == ExitCode.OK

    assert "the plan is for 214 lookups per sample, the data has 26" in caplog.text


def test_an_evaluation_path_is_left_out_of_training(tmp_path: Path) -> None:
    """Also where the pattern of the training data matches it."""
    from neuroshard_api.documents.document import validated
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.job.training import Data
    from neuroshard_trainer.data.formats import open_source
    from neuroshard_trainer.data.samples import features_of

    tables = read_table_set(ROOT / "planner/neuroshard_planner/workloads/mlperf-dlrm-v1.yaml")
    assert isinstance(tables, TableSet)
    write_data(tmp_path, list(tables.tables))
    data = validated(
        Data, {"format": "CriteoBinary", "path": "criteo/day_*", "evaluationPath": "criteo/day_23_*"}, where="data"
    )
    made = open_source(
        data,
        tables,
        features_of(tables.tables),
        num_dense=13,
        seed=0,
        root=tmp_path,
        spare=tmp_path,
        leave_out=data.evaluation_path,
    )

    assert sum(made.block_sizes) == 10
    assert made.place(0, 0).endswith("day_0 row 0")

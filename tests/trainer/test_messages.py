"""The whole printed error of trainings that cannot begin or go on, as the file ``messages.txt`` has it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.request import MemorySettings
from neuroshard_api.documents.tables import DataType
from support import builders
from support.golden import Golden, sections
from support.trainer.data_builders import npz_arrays
from support.trainer.trainer_builders import TABLES, plan_of, write_plan

MESSAGES = Path(__file__).parent / "messages.txt"
FEATURES = tuple(table.name for table in TABLES)
FILE: dict[str, Any] = {"numSamples": None}
CRITEO = FILE | {"format": "CriteoTSV"}
CRITEO_MODEL = {"tables": (builders.table("cat_0"),), "model": {"numDenseFeatures": 13}}
NPZ = FILE | {"format": "NPZ"}


def arrays(**changes: Any) -> dict[str, Any]:
    """Return the arrays of ten samples for the job's model; None leaves one out."""
    made = npz_arrays(10, FEATURES, num_dense=3) | {name.replace("__", "."): each for name, each in changes.items()}
    return {name: each for name, each in made.items() if each is not None}


JOBS: dict[str, Mapping[str, Any]] = {
    "an unknown field": {"training": {"steps": 3}},
    "a kernel that FBGEMM does not have": {"model": {"embeddingOptimizer": "Adam"}},
    "a batch larger than the data": {"model": {"batchSizePerDevice": 400}},
    "a loss that is not finite": {"training": {"embeddingLearningRate": "1e30"}},
    "a file that does not exist": {"data": CRITEO | {"path": "none.tsv"}},
    "a folder without files": {"data": CRITEO | {"path": "nothing"}},
    "a line with too few columns": CRITEO_MODEL | {"data": CRITEO | {"path": "short.tsv"}},
    "an empty file": CRITEO_MODEL | {"data": CRITEO | {"path": "empty.tsv"}},
    "binary data instead of lines": CRITEO_MODEL | {"data": CRITEO | {"path": "binary.tsv"}},
    "a file that is not Parquet": {"data": FILE | {"format": "Parquet", "path": "text.csv"}},
    "a file that is not NPZ": {"data": NPZ | {"path": "text.npz"}},
    "an array that is missing": {"data": NPZ | {"path": "missing.npz"}},
    "an array of another type": {"data": NPZ | {"path": "type.npz"}},
    "lengths and ids that differ": {"data": NPZ | {"path": "sum.npz"}},
    "too many dense features": {"data": NPZ | {"path": "dense.npz"}},
    "a data set that cannot be imported": {"data": FILE | {"format": "Dataset", "dataset": "no_such_package:Class"}},
    "a MovieLens file that does not exist": {"data": FILE | {"format": "MovieLens100K", "path": "ml.whl"}},
}
"""The job's spec, in which one thing is wrong."""
PLANS: dict[str, Any] = {
    "a plan for more processes": plan_of(world_size=2),
    "a plan of other tables": plan_of(tables=TABLES[:2]),
    "pooled embeddings in which gradients vanish": plan_of(memory=MemorySettings(output_data_type=DataType.FP16)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with data that cannot be trained with."""
    (tmp_path / "nothing").mkdir()
    (tmp_path / "short.tsv").write_text("1\t2\t3\n" * 40)
    (tmp_path / "empty.tsv").touch()
    (tmp_path / "binary.tsv").write_bytes(bytes(range(256)) * 8)
    for name in ("text.csv", "text.npz"):
        (tmp_path / name).write_text("a,b\n")
    for name, changed in {
        "missing": arrays(user__values=None),
        "type": arrays(user__values=np.zeros(10)),
        "sum": arrays(user__lengths=np.full(10, 5)),
        "dense": arrays(dense=np.zeros((10, 4), dtype=np.float32)),
    }.items():
        np.savez(tmp_path / f"{name}.npz", **changed)
    return tmp_path


@pytest.mark.slow
def test_errors_have_the_texts_of_their_file(
    run: Callable[..., Any], folder: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """What a training prints when it ends early is what users read first: a change of its words is seen in review."""

    def printed() -> str:
        lines = capsys.readouterr().err.replace(f"{folder}/", "").splitlines()
        return "\n".join(line for line in lines if line.startswith("error: "))

    texts = {}
    for number, (name, spec) in enumerate(JOBS.items()):
        write_plan(folder, plan_of(tables=spec.get("tables", TABLES)))
        run(run_dir=f"job-{number}", **spec)
        texts[name] = printed()
    run("--trace-steps", "7:5")
    texts["steps that cannot be traced"] = printed()
    for name, plan in PLANS.items():
        write_plan(folder, plan)
        run()
        texts[name] = printed()

    golden(MESSAGES, sections(texts))

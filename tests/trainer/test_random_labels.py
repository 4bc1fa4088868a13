"""Labels that are drawn at random cannot be predicted, on any documented path from a log to a training."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.table_files import read_table_set
from neuroshard_api.job.job_file import read_job_file
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.main import run as neuroshard
from support.trainer.trainer_builders import plan_of, write_plan

Run = Callable[..., ExitCode]
GUIDES = Path(__file__).parents[2] / "docs" / "guides"
COUNT = 12_000
"""A third is held out: the AUC of 4,000 random labels is within 0.03 of 0.5 in 1,000 of 1,001 cases."""
CLICKS = {"format": "Parquet", "path": "clicks", "labelColumn": "clicked", "denseColumns": ["price"]}
NPZ = {"format": "NPZ", "path": "log.npz", "labelColumn": "clicked"}


def columns() -> dict[str, Any]:
    """Return a log in the order of time: sessions interleave, and lists repeat within them."""
    rng = np.random.default_rng(0)
    visits = np.arange(COUNT) // 64 * 8 + rng.integers(0, 8, COUNT)
    return {
        "visit_id": visits,
        "ts": pa.array(1_767_225_600 + np.arange(COUNT), pa.timestamp("s")),
        "clicked": rng.integers(0, 2, COUNT),
        "item": rng.integers(0, 50, COUNT),
        "history": [[int(visit) % 97, int(visit) % 31] for visit in visits],
        "city": np.array(["a", "b"])[rng.integers(0, 2, COUNT)],
        "price": rng.random(COUNT),
    }


def write_logs(folder: Path) -> None:
    """Write the log in each format under the names that the guides have."""
    log = columns()
    (folder / "clicks").mkdir()
    pq.write_table(pa.table(log), folder / "clicks" / "0.parquet", row_group_size=1000)
    labels, items = log["clicked"].tolist(), log["item"].tolist()
    lines = ("\t".join([str(labels[row]), *["5"] * 13, *[f"{items[row] + row % 7:x}"] * 26]) for row in range(COUNT))
    (folder / "day_0.tsv").write_text("".join(f"{line}\n" for line in lines))
    np.save(folder / "day_0_dense.npy", np.ones((COUNT, 13), dtype=np.float32))
    np.save(folder / "day_0_labels.npy", log["clicked"].astype(np.int32)[:, None])
    np.save(folder / "day_0_sparse.npy", np.repeat(log["item"].astype(np.int32)[:, None], 26, axis=1))
    ones = np.ones(COUNT, dtype=np.int64)
    arrays = {"clicked": log["clicked"], "dense": log["price"][:, None].astype(np.float32)}
    for name in ("item", "clicked"):
        arrays |= {f"{name}.values": log[name], f"{name}.lengths": ones}
    np.savez(folder / "log.npz", **arrays)


def documented() -> list[str]:
    """Return the commands of the guides that make a table set of a log."""
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(GUIDES.glob("*.md")))
    return re.findall(r"^(?:    )?(neuroshard stats (?!\S+:).*)$", text, flags=re.MULTILINE)


def trained_auc(run: Run, folder: Path, **data: Any) -> float:
    """Train the tables of tables.json, and return the AUC of the held-out samples."""
    left_out = {"feature_names": (), "reuse_histogram": None, "duplication_group": None, "duplication_factor": None}
    tables = tuple(
        table.model_copy(update={"embedding_dim": 16, **left_out})
        for table in read_table_set(folder / "tables.json").tables
    )
    write_plan(folder, plan_of(tables=tables))
    num_dense = 13 if str(data["format"]).startswith("Criteo") else 1
    code = run(
        tables=tables,
        model={"batchSizePerDevice": 500, "numDenseFeatures": num_dense},
        data={"numSamples": None, "validationPercent": 33, **data},
        training={"epochs": 2, "embeddingLearningRate": "0.1", "denseLearningRate": "0.01"},
        experimental={"watchDrift": False},
    )
    assert code == ExitCode.OK
    return TrainingProgress.read(folder / "run" / "progress.json").metrics["auc"]


SESSIONS = ("--session visit_id --time ts", "--out clustered --session visit_id --time ts --window 1h")
PATHS: dict[str, tuple[list[str], dict[str, Any]]] = {
    **{
        command: ([command], CLICKS if "clicks" in command else {"format": "CriteoTSV", "path": "day_0.tsv"})
        for command in documented()
    },
    "sessions": (
        [
            f"neuroshard stats clicks --embedding-dim 16 --label clicked {SESSIONS[0]} --out tables.json",
            f"neuroshard cluster-sessions clicks {SESSIONS[1]}",
        ],
        {**CLICKS, "path": "clustered", "sessionColumn": "visit_id", "timeColumn": "ts"},
    ),
    "criteo's arrays": (
        ["neuroshard stats day_0_dense.npy --embedding-dim 16 --out tables.json"],
        {"format": "CriteoBinary", "path": "day_0_dense.npy"},
    ),
    "arrays": (["neuroshard stats log.npz --embedding-dim 16 --label clicked --out tables.json"], NPZ),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_random_labels_are_not_predicted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The AUC of held-out samples is that of chance."""
    monkeypatch.chdir(tmp_path)
    write_logs(tmp_path)
    commands, data = PATHS[path]
    for command in commands:
        assert neuroshard(shlex.split(command)[1:]) == ExitCode.OK

    assert trained_auc(run, tmp_path, **data) == pytest.approx(0.5, abs=0.03)


@pytest.mark.slow
def test_random_labels_are_not_predicted_by_the_job_that_init_writes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command of the guide, whose job has all tables and dense columns of the log."""
    monkeypatch.chdir(tmp_path)
    write_logs(tmp_path)
    text = (GUIDES / "own-data.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    (neuroshard init .*) > job\.yaml$", text, flags=re.MULTILINE)

    assert neuroshard(shlex.split(command)[1:]) == ExitCode.OK
    (tmp_path / "job.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    written = read_job_file(tmp_path / "job.yaml")
    (tmp_path / "tables.json").write_text(written.tables().to_json(), encoding="utf-8")
    data = written.job.spec.data.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude={"validation_percent"}
    )

    assert data["denseColumns"] == ["price"]
    assert {name for table in written.tables().tables for name in table.features} == {
        "visit_id", "item", "history", "city"
    }  # fmt: skip
    assert trained_auc(run, tmp_path, **data) == pytest.approx(0.5, abs=0.03)


@pytest.mark.slow
def test_a_label_that_is_looked_up_would_show(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another name: the trainings above would find it. Under its own name the job is refused."""
    monkeypatch.chdir(tmp_path)
    write_logs(tmp_path)
    table = pq.read_table(tmp_path / "clicks")
    pq.write_table(table.append_column("copy", table["clicked"]), tmp_path / "copied.parquet")
    asked = ["stats", "copied.parquet", "--embedding-dim", "16", "--ignore", "visit_id", "--out", "tables.json"]

    assert neuroshard([*asked, "--label", "clicked"]) == ExitCode.OK
    assert trained_auc(run, tmp_path, **{**CLICKS, "path": "copied.parquet"}) > 0.9

    assert neuroshard(asked) == ExitCode.OK
    with pytest.raises(AssertionError):
        trained_auc(run, tmp_path, **{**CLICKS, "path": "copied.parquet"})


def test_the_guides_have_commands_for_logs() -> None:
    """Of which the tests above are made."""
    assert {command.split()[2] for command in documented()} >= {"day_0.tsv", "clicks/"}

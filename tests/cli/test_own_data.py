"""From a public log to the metrics of an exported model, by the commands of the guide, on MovieLens-100K."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.job_file import read_job_file
from neuroshard_costs.bundle import bundled_root

MOVIELENS = Path(__file__).parents[2] / ".cache" / "recbole-1.2.1" / "recbole" / "dataset_example" / "ml-100k"
NEUROSHARD = Path(sys.executable).parent / "neuroshard"
HELD_OUT = 10_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the ratings as a log: in the order of time, the last tenth in a second file."""
    if not MOVIELENS.is_dir():
        pytest.skip("MovieLens-100K is not here; `make test-processes` fetches it (the wheel of recbole)")
    users, items = ({next(iter(row.values())): row for row in rows(f"ml-100k.{kind}")} for kind in ("user", "item"))
    ratings = sorted(rows("ml-100k.inter"), key=lambda row: float(row["timestamp:float"]))
    raters = [users[row["user_id:token"]] for row in ratings]
    films = [items[row["item_id:token"]] for row in ratings]
    log = pa.table(
        {
            "liked": [float(row["rating:float"]) >= 4 for row in ratings],
            "user id": [row["user_id:token"] for row in raters],
            "возраст": [int(row["age:token"]) for row in raters],
            "occupation": [row["occupation:token"] for row in raters],
            "zip": [row["zip_code:token"] for row in raters],
            "film": [int(row["item_id:token"]) for row in films],
            "year": [int(row["release_year:token"]) if row["release_year:token"].isdigit() else None for row in films],
            "genres": [row["class:token_seq"].split() for row in films],
            "at": [int(float(row["timestamp:float"])) for row in ratings],
        }
    )
    (tmp_path / "log").mkdir()
    pq.write_table(log[:-HELD_OUT], tmp_path / "log" / "0.parquet", row_group_size=4096)
    pq.write_table(log[-HELD_OUT:], tmp_path / "log" / "1.parquet", row_group_size=4096)
    return tmp_path


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the data set's files."""
    with (MOVIELENS / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def ran(folder: Path, *command: object) -> str:
    """Return the output of a command that must end well."""
    ended = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.processes
def test_a_public_log_goes_from_init_to_the_metrics_of_its_export(folder: Path) -> None:
    """Text ids, a column in another script, lists of texts, and nulls; the export predicts what was trained."""
    options = ("--label", "liked", "--dense", "возраст", "--ignore", "at", "--embedding-dim", 16)
    written = ran(folder, NEUROSHARD, "init", "log/0.parquet", "log/1.parquet", *options)
    job = folder / "job.yaml"
    job.write_text(written.replace("  data:\n", "  data:\n    evaluationPath: log/1.parquet\n"), encoding="utf-8")
    tables = {(*each.feature_names, each.name)[0]: each for each in read_job_file(job).tables().tables}

    assert "'log/*.parquet'" in written.splitlines()[0]
    assert tables["user id"].id_rule is tables["genres"].id_rule is IdRule.HASH
    assert (tables["film"].id_rule, tables["film"].num_embeddings) == (IdRule.EXACT, 1683)
    assert tables["user id"].num_embeddings == 2 * 943

    bundle = bundled_root() / "h100-80gb"
    trained = json.loads(ran(folder, NEUROSHARD, "run", job, "--bundle", bundle, "--run-dir", "run", "--json"))
    export = (sys.executable, "-m", "neuroshard_trainer.export", "run/job.json", "--plan", "run/plan.json")
    ran(folder, *export, "--run-dir", "run/train", "--out", "served")
    found: dict[str, Any] = json.loads(ran(folder, NEUROSHARD, "evaluate", "served", "log/1.parquet", "--json"))
    metrics = trained["metrics"]

    assert found["num_samples"] == HELD_OUT
    assert found["auc"] > 0.65  # of the last days, whose users are mostly new
    assert np.isclose(found["auc"], metrics["auc"], atol=2e-4)
    assert np.isclose(found["normalized_entropy"], metrics["normalized_entropy"], atol=1e-3)

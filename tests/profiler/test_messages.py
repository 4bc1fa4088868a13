"""The whole printed error of the profiler's commands with broken inputs, as the file ``messages.txt`` has it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neuroshard_profiler.__main__ import main
from support.builders import table_set
from support.golden import Golden, sections
from support.profiler.record_builders import compute_record, written

MESSAGES = Path(__file__).parent / "messages.txt"
SIMULATED = ("--set", "spec.profiler.backend=Simulated", "--set", "spec.profiler.deviceType=h100-80gb")
PROFILE = ("profile", "--out", "out")
STATS = ("stats", "--embedding-dim", "16")

COMMANDS: dict[str, tuple[str, ...]] = {
    "a missing option": ("profile",),
    "a simulated backend without a device": (*PROFILE, *SIMULATED[:2]),
    "an unknown device": (*PROFILE, *SIMULATED[:3], "spec.profiler.deviceType=h1000"),
    "a budget that is not a duration": (*PROFILE, *SIMULATED, "--budget", "soon"),
    "a job that does not exist": ("profile", "none.yaml", "--out", "out"),
    "a folder that cannot be made": ("profile", *SIMULATED, "--out", "text.csv/out"),
    "records of an earlier release": ("profile", *SIMULATED, "--out", "earlier", "--max-records", "20"),
    "a node without its rank": (*PROFILE, *SIMULATED, "--meet", "host:29500"),
    "an address without a port": (*PROFILE, "--meet", "host"),
    "one process instead of several": ("collect-comm", "--out", "out"),
    "a part that does not exist": (
        "collect-compute",
        "--backend",
        "simulated",
        "--device-type",
        "h100-80gb",
        "--out",
        "out",
        "--part",
        "8/8",
    ),
    "no records": ("fit", "none.jsonl", "--hardware", "none.json", "--out", "out"),
    "data that does not exist": (*STATS, "none.parquet"),
    "files of several formats": (*STATS, "."),
    "constant lists without an order": (*STATS, "data.parquet", "--constant", "user"),
    "a list that changes in a session": (
        *(*STATS, "data.parquet", "--constant", "user"),
        *("--session", "session", "--time", "time"),
    ),
    "data of no known format": (*STATS, "data.dat"),
    "a file that is not Parquet": (*STATS, "text.csv", "--format", "Parquet"),
    "a column that is missing": (*STATS, "data.parquet", "--feature", "other"),
    "a column of fractions": (*STATS, "data.parquet", "--feature", "price"),
    "sessions of Criteo": (*STATS, "data.tsv", "--session", "user"),
    "times without sessions": (*STATS, "data.parquet", "--time", "time"),
    "a file that is not NPZ": (*STATS, "text.npz"),
    "an array of another type": (*STATS, "float.npz"),
    "ids below 0 as rows": (*STATS, "negative.npz", "--id-rule", "Exact"),
    "texts as rows": (*STATS, "data.parquet", "--feature", "name", "--id-rule", "Modulo"),
    "lengths and ids that differ": (*STATS, "sum.npz"),
    "a line with too few columns": (*STATS, "data.tsv"),
    "no samples": (*STATS, "empty.parquet"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with inputs that the profiler refuses."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.json").write_text(table_set().to_json(), encoding="utf-8")
    for name in ("data.dat", "text.csv", "text.npz"):
        (tmp_path / name).write_text("a,b\n", encoding="utf-8")
    (tmp_path / "data.tsv").write_text("1\t2\t3\n", encoding="utf-8")
    columns = {"user": [1, 2], "name": ["a", "b"], "price": [0.5, 1.5], "time": [1, 2], "session": [7, 7]}
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    pq.write_table(pa.table({"user": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    lengths = np.ones(3, dtype=int)
    for name, values in {"float": np.zeros(3), "negative": np.full(3, -1), "sum": np.zeros(2, dtype=int)}.items():
        np.savez(tmp_path / name, allow_pickle=False, **{"user.lengths": lengths, "user.values": values})
    records = tmp_path / "earlier" / "records"
    records.mkdir(parents=True)
    written(records, compute_record())
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_errors_have_the_texts_of_their_file(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """What a command prints when it ends early is what users read first: a change of its words is seen in review."""
    texts = {}
    for name, command in COMMANDS.items():
        code = main(command)
        texts[name] = f"{capsys.readouterr().err.strip()}\nexit code {int(code)}"

    golden(MESSAGES, sections(texts))

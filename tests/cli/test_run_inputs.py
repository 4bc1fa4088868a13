"""What a stage of a run depends on."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.job.continuation import other_facts
from neuroshard_api.job.training import Data, DataFormat
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_cli.local.inputs import data_files, data_root, digest, machine, training_facts, versions
from support import builders

MODEL = builders.job_data()["spec"]["model"]


def test_digests_tell_sequences_apart() -> None:
    """Moving a character from one part to the next is a change."""
    assert len({digest(["ab", "c"]), digest(["a", "bc"]), digest(["abc"])}) == 3


def test_data_files_are_named_with_size_and_time(tmp_path: Path) -> None:
    """A folder by the files in it, a pattern by what matches; whatever changes a file changes its line."""
    (tmp_path / "data").mkdir()
    for name in ("day_0", "day_1", "other"):
        (tmp_path / "data" / name).write_text(name, encoding="utf-8")

    lines = data_files(tmp_path, "data")
    (tmp_path / "data" / "day_1").write_text("longer than before", encoding="utf-8")

    assert [Path(line.split()[0]).name for line in lines] == ["day_0", "day_1", "other"]
    assert data_files(tmp_path, "data/day_*") == data_files(tmp_path, str(tmp_path / "data"))[:2]
    assert data_files(tmp_path, "data")[1] != lines[1]
    assert data_files(tmp_path, "nowhere*") == []


def test_data_is_in_the_folder_of_the_job_or_else_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's folder comes first, also where neither has the data, so that an error names it."""
    for name in ("jobs/both.csv", "data/both.csv", "data/day_0.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "data")

    def found(path: str) -> str:
        return data_root(Path("../jobs/job.yaml"), Data(format=DataFormat.CSV, path=path)).resolve().name

    assert [found(path) for path in ("both.csv", "day_*.csv", "none.csv", f"{tmp_path}/data/day_0.csv")] == [
        "jobs",
        "data",
        "jobs",
        "jobs",
    ]


def test_machine_and_versions_are_the_same_in_the_next_moment() -> None:
    """Nothing in them changes by itself, or every stage would be repeated."""
    assert machine() == machine()
    assert versions() == versions()
    assert any(line.startswith("neuroshard-operator ") for line in versions())


@pytest.mark.parametrize(
    ("spec", "others"),
    [
        ({"data": {"deduplication": "Off"}}, []),
        ({"experimental": {"data": {"sessionRun": 8, "readerProcesses": 0}}}, []),
        ({"model": {**MODEL, "batchSizePerDevice": 7}, "trainer": {"numProcPerNode": 3}}, []),
        ({"training": {"embeddingLearningRate": "0.5", "maxSteps": 3}}, []),
        ({"experimental": {"data": {"sessionRun": 4}}}, ["spec.experimental.data.sessionRun"]),
        ({"data": {"shuffle": False}}, ["spec.data.shuffle"]),
        ({"training": {"seed": 7}}, ["spec.training.seed"]),
        ({"experimental": {"data": {"seed": 7}}}, ["spec.experimental.data.seed"]),
        ({"experimental": {"data": {"seed": 0}}}, []),
    ],
)
def test_a_training_is_another_one_where_a_setting_changes_samples_or_model(
    spec: dict[str, Any], others: list[str]
) -> None:
    """Not where repeats are left out, or on other devices; a field of a later release counts only where it is set."""

    def facts(job: DLRMTrainingJob) -> dict[str, str]:
        tables = job.spec.model.inline_tables("job")
        assert tables is not None
        return training_facts(job, tables, ["file 1 2"])

    usual = facts(builders.job())

    assert not [field for field in usual if "session" in field.lower() or "missing" in field]
    assert [phrase.split(" = ")[0] for phrase in other_facts(usual, facts(builders.job(**spec)))] == [
        f"was trained with {field}" for field in others
    ]

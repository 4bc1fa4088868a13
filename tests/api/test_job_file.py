"""Job files with the ConfigMaps that they name."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.job_file import is_job_file, read_job_file
from support import builders

CSV = "name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,1\n"
FROM_CONFIG_MAP = {"embeddingTablesFrom": {"configMapKeyRef": {"name": "tables", "key": "tables.csv"}}}


def config_map(**fields: Any) -> dict[str, Any]:
    """Return the ConfigMap of the tables."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tables"}, **fields}


def written(path: Path, *documents: object) -> Path:
    """Return a file that holds these documents."""
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path


def test_a_job_brings_its_own_tables(tmp_path: Path) -> None:
    """They are called as the job is."""
    found = read_job_file(written(tmp_path / "job.yaml", builders.job_data("mine")))

    assert found.job == builders.job("mine")
    assert (found.tables().name, len(found.tables().tables)) == ("mine", 2)


def test_a_job_in_json_is_read(tmp_path: Path) -> None:
    """JSON is YAML too."""
    path = tmp_path / "job.json"
    path.write_text(builders.job().to_json(), encoding="utf-8")

    assert read_job_file(path).job == builders.job()


@pytest.mark.parametrize(
    "fields",
    [{"data": {"tables.csv": CSV}}, {"binaryData": {"tables.csv": base64.b64encode(CSV.encode()).decode()}}],
    ids=["text", "binary"],
)
def test_tables_of_a_config_map_stand_in_the_same_file(tmp_path: Path, fields: dict[str, Any]) -> None:
    """What `kubectl apply` takes runs here as it is."""
    path = written(tmp_path / "job.yaml", config_map(**fields), builders.job_data(model=FROM_CONFIG_MAP))

    assert [table.name for table in read_job_file(path).tables().tables] == ["user"]


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ((), "holds nothing, expected one DLRMTrainingJob, and ConfigMaps that it names; hint: keep other"),
        ((config_map(),), "holds ConfigMap, expected one DLRMTrainingJob"),
        ((builders.job_data(), builders.job_data()), "holds DLRMTrainingJob, DLRMTrainingJob, expected one"),
        (({"kind": "Namespace"}, builders.job_data()), "holds Namespace, DLRMTrainingJob, expected one"),
        (({"kind": "Job"},), "is a Job, expected a DLRMTrainingJob; hint: "),
        (
            ({"apiVersion": "v1", "kind": "List", "items": []},),
            "is a List, expected a DLRMTrainingJob; hint: write one",
        ),
        (({"spec": {}},), "apiVersion: is missing; kind: is missing; hint: add `apiVersion: "),
        ((builders.job_data(planer={}),), "spec.planer: is not a known key; hint: did you mean planner"),
        (("just text",), "must hold a DLRMTrainingJob, found a str"),
    ],
    ids=["empty", "no-job", "two-jobs", "namespace", "other", "list", "part", "unknown-field", "text"],
)
def test_a_file_without_one_good_job_is_refused(tmp_path: Path, documents: tuple[object, ...], problem: str) -> None:
    """The message names the file and the field."""
    path = written(tmp_path / "job.yaml", *documents)

    with pytest.raises(DocumentError) as caught:
        read_job_file(path)

    assert str(caught.value).startswith(f"{path}: {problem}")


def test_a_status_is_passed_over(tmp_path: Path) -> None:
    """That of another release, as `kubectl get -o yaml` writes it, keeps nobody from planning the job."""
    data = builders.job_data("mine") | {"status": {"newer": 1}}

    found = read_job_file(written(tmp_path / "job.yaml", data))

    assert found.job == builders.job("mine")
    assert found.document == builders.job_data("mine")


def test_a_job_needs_no_suffix(tmp_path: Path) -> None:
    """By its keys."""
    assert is_job_file(written(tmp_path / "job", builders.job_data()))


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    """Also behind the first document."""
    path = tmp_path / "job.yaml"
    path.write_text("kind: ConfigMap\n---\nkind: [", encoding="utf-8")

    with pytest.raises(DocumentError, match="is not valid YAML at line 4, column 1"):
        read_job_file(path)


@pytest.mark.parametrize(
    ("maps", "problem"),
    [
        ((), "names the ConfigMap 'tables', which is not in this file; hint: add it behind a line `---`"),
        ((config_map(),), "the ConfigMap 'tables' of this file has no text under the key 'tables.csv'"),
        ((config_map(data={"tables.csv": 7}),), "has no text under the key 'tables.csv'"),
        ((config_map(binaryData={"tables.csv": "!"}),), "is not base64"),
        ((config_map(data={"tables.csv": "name\n"}),), "tables.csv: line 1, column num_embeddings: is missing"),
    ],
    ids=["no-map", "no-key", "number", "no-base64", "no-tables"],
)
def test_tables_that_cannot_be_found_are_named(tmp_path: Path, maps: tuple[object, ...], problem: str) -> None:
    """A cluster is not asked: what the job needs must be in its file."""
    path = written(tmp_path / "job.yaml", builders.job_data(model=FROM_CONFIG_MAP), *maps)

    with pytest.raises(DocumentError) as caught:
        read_job_file(path).tables()

    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)


FROM_FILE = {"embeddingTablesFrom": {"file": "tables.csv"}}


def test_tables_of_a_file_are_below_the_folder_of_the_job(tmp_path: Path) -> None:
    """Wherever the command was started."""
    path = written(tmp_path / "job.yaml", builders.job_data(model=FROM_FILE))
    (tmp_path / "tables.csv").write_text(CSV, encoding="utf-8")

    assert [table.name for table in read_job_file(path).tables().tables] == ["user"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"file": "no.csv"}, "no.csv: does not exist"),
        ({"file": "tables.txt"}, "is not a readable table set: the suffix is '.txt'"),
        ({"file": "label.csv"}, "tables[0].name: 'label' is the label"),
        (
            {"file": "tables.csv", **FROM_CONFIG_MAP["embeddingTablesFrom"]},
            "spec.model.embeddingTablesFrom: set exactly one of configMapKeyRef and file",
        ),
    ],
    ids=["missing", "suffix", "label", "two"],
)
def test_a_file_without_good_tables_is_refused(tmp_path: Path, source: dict[str, Any], problem: str) -> None:
    """The message names the file of the tables, or the field."""
    data = {"format": "Parquet", "path": "log.parquet"}
    path = written(tmp_path / "job.yaml", builders.job_data(model={"embeddingTablesFrom": source}, data=data))
    (tmp_path / "tables.txt").write_text(CSV, encoding="utf-8")
    (tmp_path / "label.csv").write_text(CSV.replace("user", "label"), encoding="utf-8")

    with pytest.raises(DocumentError, match=re.escape(problem)):
        read_job_file(path).tables()

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.records import CodecSample, ProfileRecord
from neuroshard_api.documents.request import Constraints
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_costs.bundle import bundled_root
from support.builders import bundle_manifest, hardware, job, job_data, request, table_set, topology
from support.cli.searches import quick


@pytest.fixture
def plan(neuroshard: Any, tmp_path: Path) -> Path:
    """Write a plan of a bundled workload."""
    path = tmp_path / "plan.json"
    neuroshard("plan", "criteo-kaggle", *quick(4), "--out", path)
    return path


def test_every_kind_of_document_is_recognised(neuroshard: Any, tmp_path: Path, plan: Path) -> None:
    """By its schema_version, its suffix, or as a bundle's directory."""
    documents = [table_set(), topology(), Constraints(), request(), bundle_manifest()]
    paths = []
    for document in documents:
        paths.append(tmp_path / f"{document.schema_name.partition('/')[0]}.json")
        paths[-1].write_text(document.to_json())
    csv = tmp_path / "tables.csv"
    csv.write_text("name,num_embeddings,embedding_dim,pooling_factor\na,10,8,1\n")
    result = neuroshard("validate", *paths, csv, plan, bundled_root() / "h100-80gb")

    assert (result.code, result.err) == (0, "")
    kinds = [line.rpartition("(")[2] for line in result.out.splitlines()]
    assert kinds == [*(f"{each.schema_name})" for each in documents), "table-set/v1)", "plan/v3)", "bundle)"]


def test_documents_of_all_commands_are_recognised(neuroshard: Any, tmp_path: Path, plan: Path) -> None:
    """Also those that other libraries and the trainer read."""
    exported, measured = tmp_path / "sharding.json", tmp_path / "hardware.json"
    neuroshard("export", plan, "--out", exported)
    measured.write_text(hardware().to_json(), encoding="utf-8")
    result = neuroshard("validate", exported, measured)

    assert result.out.splitlines() == [f"{exported}: ok ({TorchRecPlan.schema_name})", f"{measured}: ok (hardware/v1)"]


def test_every_problem_of_every_file_is_told(neuroshard: Any, tmp_path: Path) -> None:
    """One line each, beginning with the file and the field's path; good files are listed as good."""
    bad, worse, good = (tmp_path / name for name in ("bad.json", "worse.csv", "good.json"))
    tables = [{"name": "a", "num_embeddings": 0, "embedding_dim": 30}]
    bad.write_text(json.dumps({"schema_version": "table-set/v1", "tables": tables}))
    worse.write_text("name,num_embeddings\na,1\n")
    good.write_text(table_set().to_json())
    result = neuroshard("validate", bad, worse, good)

    assert result.code == 2
    assert result.out == f"{good}: ok (table-set/v1)\n"
    lines = result.err.splitlines()
    assert [line for line in lines if line.startswith(f"{bad}: tables[0].num_embeddings")]
    assert [line for line in lines if line.startswith(f"{bad}: tables[0].embedding_dim")]
    assert [line for line in lines if line.startswith(f"{worse}: ")]


def test_every_line_of_a_csv_is_checked(neuroshard: Any, tmp_path: Path) -> None:
    """Neither a line that is too short nor a name that occurs twice hides the faults of other lines."""
    file, other = tmp_path / "tables.csv", tmp_path / "other.csv"
    lines = ("a,100,8,1", "a,40.5,8,1", "b,1000,3,1", "c,1000,8,-1", "d,1000,8")
    file.write_text("\n".join(("name,num_embeddings,embedding_dim,pooling_factor", *lines)))
    other.write_text("name;num_embeddings;embedding_dim;pooling_factor\na;1;8;1\n")
    found = [line.partition(": ")[2] for line in neuroshard("validate", file).err.splitlines() if "csv: " in line]

    assert [problem.partition(":")[0] for problem in found] == [
        "line 6",
        "line 3, column name",
        "line 3, column num_embeddings",
        "line 4, column embedding_dim",
        "line 5, column pooling_factor",
    ]
    assert "line 1, its columns are separated by ';'" in neuroshard("validate", other).err


def test_a_plan_is_held_against_its_own_tables(neuroshard: Any, plan: Path) -> None:
    """A shard on a device that does not exist is named by its path."""
    raw = json.loads(plan.read_text())
    raw["tables"][3]["shards"][0]["device"] = 99
    plan.write_text(json.dumps(raw))
    result = neuroshard("validate", plan)

    assert result.code == 2
    assert "tables[3].shards[0].device: device 99 does not exist" in result.err


def test_commands_refuse_a_plan_that_does_not_match_its_tables(neuroshard: Any, plan: Path) -> None:
    """A report of it would be wrong."""
    raw = json.loads(plan.read_text())
    del raw["tables"][0]
    plan.write_text(json.dumps(raw))

    for command in (("report", plan), ("export", plan)):
        result = neuroshard(*command)
        assert (result.code, result.out) == (2, "")
        assert "missing" in result.err


def test_findings_are_json_for_machines(neuroshard: Any, tmp_path: Path, plan: Path) -> None:
    """On stdout, whether or not there are problems; the exit code says which."""
    unknown = tmp_path / "unknown.json"
    unknown.write_text('{"schema_version": "recipe/v1"}')
    result = neuroshard("validate", "--json", plan, unknown)

    assert (result.code, result.err) == (2, "")
    first, second = json.loads(result.out)
    assert first == {"file": str(plan), "kind": Plan.schema_name, "problems": []}
    assert second["kind"] is None
    assert "recipe/v1" in second["problems"][0]


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"[]", b"{", b"- a: b: c"])
def test_anything_else_is_a_problem_too(neuroshard: Any, tmp_path: Path, content: bytes) -> None:
    """Garbage is named, never a traceback."""
    path = tmp_path / "garbage.json"
    path.write_bytes(content)
    result = neuroshard("validate", path)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"{path}: ")


def test_records_are_checked_line_by_line(neuroshard: Any, tmp_path: Path) -> None:
    """The line of a broken record is named."""
    path = tmp_path / "records.jsonl"
    path.write_text('\n{"schema_version": "profile-record/v1"}\n')
    result = neuroshard("validate", path)

    assert result.code == 2
    assert f"{path}: line 2: " in result.err


def test_a_record_of_a_codec_without_times_is_a_problem(neuroshard: Any, tmp_path: Path) -> None:
    """Unless it says why its sample has none."""
    sample = CodecSample(type=WireType.FP16, batch_size=64, num_columns=64)
    timed = ProfileRecord(source="cpu:core", codec=sample, forward_ms=1.0, backward_ms=2.0)
    path = tmp_path / "codecs.jsonl"
    broken = timed.model_copy(update={"backward_ms": None})
    failed = broken.model_copy(update={"forward_ms": None, "failure": "no such kernel"})
    path.write_text("".join(f"{each.model_dump_json(exclude_none=True)}\n" for each in (timed, failed)))
    assert neuroshard("validate", path).code == 0

    path.write_text("".join(f"{each.model_dump_json(exclude_none=True)}\n" for each in (timed, broken)))
    result = neuroshard("validate", path)

    assert result.code == 2
    assert f"{path}: line 2: backward_ms: is missing" in result.err


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_job_files_are_recognized(neuroshard: Any, tmp_path: Path) -> None:
    """A job is recognized by its kind in YAML and in JSON, also behind the ConfigMap of its tables."""
    as_json = tmp_path / "job.json"
    as_json.write_text(job().to_json())
    examples = sorted(EXAMPLES.glob("*.yaml"))
    result = neuroshard("validate", *examples, as_json)

    assert (result.code, result.err) == (0, "")
    assert result.out.count("ok (training.neuroshard.dev/v1alpha1 DLRMTrainingJob)") == len(examples) + 1


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (("batchSizePerDevice: 512", "batchSizePerDevice: 0"), "spec.model.batchSizePerDevice"),
        (("embeddingDim: 64}", "embeddingDim: sixty}"), "spec.model.embeddingTables[0].embeddingDim"),
        (("numNodes: 1", "numNode: 1"), "spec.trainer.numNode"),
        (("kind: DLRMTrainingJob", "kind: TrainingJob"), "kind"),
        (("apiVersion: training", "# apiVersion: training"), "apiVersion"),
    ],
)
def test_a_problem_of_a_job_file_has_the_path_of_its_field(
    neuroshard: Any, tmp_path: Path, change: tuple[str, str], path: str
) -> None:
    """Each problem is one line that begins with the file and the path, as for other documents."""
    file = tmp_path / "job.yaml"
    file.write_text((EXAMPLES / "02-movielens.yaml").read_text().replace(*change))
    result = neuroshard("validate", file)

    assert (result.code, result.out) == (2, "")
    assert any(line.startswith(f"{file}: {path}: ") for line in result.err.splitlines()), result.err


def test_the_tables_of_a_job_file_are_checked(neuroshard: Any, tmp_path: Path) -> None:
    """Tables in a ConfigMap of the file are read, as `neuroshard run` does; a ConfigMap of the cluster is not."""
    data = job_data(model={"embeddingTablesFrom": {"configMapKeyRef": {"name": "tables", "key": "tables.csv"}}})
    tables = {"kind": "ConfigMap", "metadata": {"name": "tables"}, "data": {"tables.csv": "name,num_embeddings\na,1\n"}}
    alone, both = tmp_path / "alone.yaml", tmp_path / "both.yaml"
    alone.write_text(yaml.safe_dump(data))
    both.write_text(yaml.safe_dump_all([tables, data]))
    result = neuroshard("validate", alone, both)

    assert result.code == 2
    assert result.out.startswith(f"{alone}: ok (")
    assert "tables.csv" in result.err
    assert "embedding_dim" in result.err

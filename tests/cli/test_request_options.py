import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Algorithm, Constraints
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.job_file import read_job_file
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.settings import parse_settings
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm import requests
from neuroshard_dlrm.devices import build_topology
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import build_request, read_source, request_of
from neuroshard_planner.workload_store import read_workload
from neuroshard_trainer.dense_profile import dense_profile
from support.builders import dense_profile as counted_part
from support.builders import request, table, table_set

OPTIONS = RequestOptions(tables="mlperf-dlrm-dcnv2", devices=8, device_type="h100-80gb")


def test_the_table_sets_own_settings_are_the_defaults() -> None:
    """The benchmark trains 65,536 samples on all devices with row-wise Adagrad."""
    request = build_request(replace(OPTIONS, devices=16), Algorithm.NEUROSHARD)

    assert request.batch_size_per_device == 65536 // 16
    assert request.optimizer is Optimizer.ROWWISE_ADAGRAD


def test_a_batch_that_does_not_divide_is_rounded_up() -> None:
    """Planning for a little more is safe, for less is not."""
    request = build_request(replace(OPTIONS, devices="1x6"), Algorithm.NEUROSHARD)

    assert request.batch_size_per_device == 10923


def test_settings_win_over_the_table_set_and_its_constraints(tmp_path: Path) -> None:
    """Every field of a job that bears on a plan reaches its field of the request."""
    limits = tmp_path / "constraints.json"
    limits.write_text(json.dumps({"schema_version": Constraints.schema_name, "min_shard_width": 16}))
    settings = {
        "spec.model.embeddingOptimizer": "Adam",
        "spec.planner.maxMemoryPerDevice": "70Gi",
        "spec.experimental.planner.denseMemoryPerDevice": "2Gi",
        "spec.experimental.planner.seed": 7,
        "spec.planner.shardingGroups": {"sizes": [4]},
        "spec.experimental.pipeline": "None",
        "spec.training.communication.policy": "Auto",
        "spec.experimental.communication.embeddings": {"forward": ["INT8"]},
    }
    asked = replace(OPTIONS, batch_size=512, constraints=limits, set=settings)
    request = build_request(asked, Algorithm.DIM_GREEDY)

    assert request.batch_size_per_device == 512
    assert (request.optimizer, request.pipeline) == ("adam", "none")
    assert request.memory.dense_bytes == 2 * 2**30
    assert request.constraints.min_shard_width == 16
    assert request.constraints.max_memory_bytes_per_device == 70 * 2**30
    assert request.search.seed == 7
    assert request.replication is not None
    assert request.replication.group_sizes == (4,)
    assert request.communication is not None
    assert (request.communication.forward, request.communication.backward) == (("INT8",), ("FP16",))
    assert request.algorithm is Algorithm.DIM_GREEDY


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"spec.planner.algoritmh": 3},
            "spec.planner has no field 'algoritmh'; hint: did you mean spec.planner.algorithm",
        ),
        ({"spec.planner.seed": 3}, "spec.planner.seed: is an earlier field; hint: set spec.experimental.planner.seed"),
        ({"spec.planner.max_memory_per_device": "1Gi"}, "did you mean spec.planner.maxMemoryPerDevice"),
        ({"spec.planner.whatever": 3}, "hint: its fields are algorithm, "),
        ({"planner.seed": 3}, "'planner.seed' is not a field of a job's spec; hint: write its whole path"),
        ({"spec.experimental.planner.seed.value": 3}, "--set: spec.experimental.planner.seed has no fields"),
        ({"spec.experimental.planner.seed": "much"}, "--set: spec.experimental.planner.seed: .*found .much"),
        ({"spec.trainer.numNodes": 4}, "--set spec.trainer.numNodes: does not change what is planned here"),
        (
            {"spec.training.denseParallelism.policy": "Shard"},
            "give the counted dense part to `neuroshard plan --dense`",
        ),
        (
            {"spec.experimental.communication.dense": ["BF16"]},
            "give the counted dense part to `neuroshard plan --dense`",
        ),
    ],
)
def test_a_setting_that_means_nothing_is_refused_by_its_path(settings: dict[str, Any], words: str) -> None:
    """A typing error, a value of another kind, or a field that no plan of tables depends on."""
    with pytest.raises((CommandError, DocumentError), match=words):
        build_request(replace(OPTIONS, set=settings), None)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["spec.experimental.planner.seed"], "'spec.experimental.planner.seed' has no value; hint: write PATH=VALUE"),
        (
            ["spec.experimental.planner.seed=1", "spec.experimental.planner.seed=2"],
            "spec.experimental.planner.seed is given twice",
        ),
        (["spec.planner.maxMemoryPerDevice="], "'spec.planner.maxMemoryPerDevice=' has no value; hint: write"),
        (["spec.planner.dataTypes=[FP32"], "--set spec.planner.dataTypes: is not valid YAML"),
    ],
)
def test_a_setting_is_a_path_and_a_value(texts: list[str], words: str) -> None:
    """As text on the command line, once for each path."""
    with pytest.raises(CommandError, match=re.escape(words)):
        parse_settings(texts)


def test_a_setting_of_the_value_that_holds_anyway_is_no_error() -> None:
    """A loop over seeds begins with 0."""
    assert build_request(replace(OPTIONS, set={"spec.experimental.planner.seed": 0}), None) == build_request(
        OPTIONS, None
    )


def test_repeated_lists_are_left_out_where_a_setting_says_it() -> None:
    """Of tables that were measured in sessions; others have none."""
    watched = table("watched", duplication_group="watched", duplication_factor=4.0)
    tables = table_set(watched, session_run=8)
    given = replace(OPTIONS, tables="tables", set={"spec.data.deduplication": "Auto"})

    assert request_of(tables, given, None).deduplicate == ("watched",)
    assert request_of(tables, replace(given, set={}), None).deduplicate is None


@pytest.mark.parametrize(("devices", "expected"), [(4, (1, 4)), ("8", (1, 8)), ("64", (8, 8)), ("4x16", (4, 16))])
def test_devices_fill_nodes_as_their_type_usually_does(devices: int | str, expected: tuple[int, int]) -> None:
    """64 H100 stand in 8 nodes, unless nodes are named too."""
    topology = build_topology(replace(OPTIONS, devices=devices))

    assert (topology.num_nodes, topology.devices_per_node) == expected


def test_a_topology_file_describes_any_device(tmp_path: Path) -> None:
    """In the place of their number and their type."""
    topology = build_topology(OPTIONS)
    path = tmp_path / "topology.json"
    path.write_text(topology.to_json())

    assert build_topology(RequestOptions(tables="", devices=str(path))) == topology


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": None}, "--devices and --device-type"),
        ({"device_type": None}, "--devices and --device-type"),
        ({"device_type": "h100"}, "--device-type: .*hint: did you mean h100-80gb"),
        ({"devices": 17}, "--devices: 17 do not fill 3 equal nodes; hint: .* 3x6"),
        ({"devices": "0x8"}, "--devices: must be at least 1"),
        ({"devices": "many", "device_type": None}, "--devices: is neither a number nor a file"),
        ({"devices": Path("t.json"), "device_type": None}, "t.json: does not exist"),
        ({"devices": Path("t.json")}, "--device-type: the topology of --devices already says it"),
    ],
    ids=["no devices", "no type", "unknown type", "uneven", "none", "neither", "missing file", "two descriptions"],
)
def test_devices_described_badly_are_refused_by_the_options_name(changes: dict[str, object], words: str) -> None:
    """Too little, too much, or nothing that exists."""
    with pytest.raises((CommandError, DocumentError), match=words):
        build_topology(replace(OPTIONS, **changes))  # type: ignore[arg-type]


def test_a_name_without_suffix_is_a_workload() -> None:
    """Files are distinguished by their suffix or folder."""
    assert read_source("mlperf-dlrm-dcnv2") == read_workload("mlperf-dlrm-dcnv2")
    with pytest.raises(DocumentError, match="does not exist"):
        read_source("mlperf-dlrm-dcnv2.yaml")


JOB = Path(__file__).parents[2] / "examples" / "02-movielens.yaml"


def test_the_request_of_a_job_is_the_operators() -> None:
    """On the devices that the job and its options name."""
    file = read_job_file(JOB)
    topology = preset("h100-80gb").topology(num_nodes=1, devices_per_node=2)
    expected = plan_request(file.job, tables=file.tables(), topology=topology)

    assert build_request(RequestOptions(tables=str(JOB), device_type="h100-80gb"), None) == expected
    chosen = build_request(RequestOptions(tables=str(JOB), device_type="h100-80gb"), Algorithm.DIM_GREEDY)
    assert chosen == expected.model_copy(update={"algorithm": Algorithm.DIM_GREEDY})
    large = build_request(replace(OPTIONS, tables=str(JOB), devices=16, batch_size=64), None)
    assert (large.topology.num_nodes, large.topology.num_devices, large.batch_size_per_device) == (2, 16, 64)


@pytest.mark.parametrize("batch_size", [None, 64])
def test_a_plan_of_a_job_counts_its_dense_part_as_its_training_would(batch_size: int | None) -> None:
    """The operator's request, and next to it what the command counts that the operator runs before the planner."""
    options = RequestOptions(tables=str(JOB), device_type="h100-80gb", batch_size=batch_size)
    asked = build_request(options, None)
    job = read_job_file(JOB).job
    if batch_size is not None:
        model = job.spec.model.model_copy(update={"batch_size_per_device": batch_size})
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"model": model})})

    found = build_request(options, None, with_dense_of_jobs=True)

    assert found == asked.with_dense(dense_profile(job, asked.tables), where="dense.json")
    assert found.dense_bytes > asked.dense_bytes == 0


def test_without_torchrec_a_plan_says_that_the_dense_part_of_a_job_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planning alone needs no torch."""
    monkeypatch.setattr("neuroshard_dlrm.requests.find_spec", lambda _: None)
    requests._say_not_counted.cache_clear()
    options = replace(OPTIONS, tables=str(JOB))

    for _ in range(2):
        assert build_request(options, None, with_dense_of_jobs=True) == build_request(options, None)
    said = capsys.readouterr().err
    assert said.count("the dense part is not counted, which takes TorchRec (not installed)\nhint: ") == 1


def test_a_size_of_the_dense_part_that_a_job_names_takes_the_place_of_the_count() -> None:
    """As for the operator."""
    options = replace(OPTIONS, tables=str(JOB), set={"spec.experimental.planner.denseMemoryPerDevice": "6Gi"})

    assert build_request(options, None, with_dense_of_jobs=True).dense is None


def test_a_job_that_brings_its_plan_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is planned is not what the job is trained under."""
    job = tmp_path / "job.yaml"
    job.write_bytes((JOB.parent / "05-own-plan.yaml").read_bytes())
    for _ in range(2):
        build_request(replace(OPTIONS, tables=str(job)), None)

    assert capsys.readouterr().err.splitlines() == [
        f"{job}: spec.planRef: the job is trained under that plan, and not under this one"
    ]


def test_a_job_in_json_is_planned_as_in_yaml(tmp_path: Path) -> None:
    """As `neuroshard run` leaves it in its folder."""
    (tmp_path / "job.json").write_text(read_job_file(JOB).job.to_json(), encoding="utf-8")

    found = build_request(replace(OPTIONS, tables=str(tmp_path / "job.json")), None)
    assert found == build_request(replace(OPTIONS, tables=str(JOB)), None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"constraints": Path("limits.json")},
            "--constraints: .* hint: set limits in spec.planner of .*02-movielens.yaml",
        ),
        ({"set": {"spec.training.epochs": 9}}, "--set spec.training.epochs: does not change what is planned here"),
        ({"batch_size": 64, "set": {"spec.model.batchSizePerDevice": 32}}, "--batch-size: excludes --set spec.model.b"),
        ({"device_type": None}, "--device-type: is missing, and .* names none in spec.profiler.deviceType"),
        (
            {"device_type": None, "set": {"spec.profiler.deviceType": "h100"}},
            "02-movielens.yaml: spec.profiler.deviceType: device type 'h100' is not known; hint: did you mean",
        ),
    ],
)
def test_what_the_operator_would_not_plan_is_refused(changes: dict[str, Any], message: str) -> None:
    """It would be dropped, or contradict what the job says."""
    with pytest.raises(CommandError, match=message):
        build_request(replace(OPTIONS, tables=str(JOB), **changes), None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 4}, "--devices: .*request.json already says what it answers; hint: leave it out"),
        ({"set": {"spec.experimental.planner.seed": 3}}, "--set: .*request.json already says"),
        ({"batch_size": 0}, "request: batch_size_per_device: "),
    ],
)
def test_a_request_says_what_is_planned(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """But for the batch size and the algorithm, which are checked again."""
    asked = build_request(OPTIONS, Algorithm.NEUROSHARD)
    file = tmp_path / "request.json"
    file.write_text(asked.to_json())
    given = RequestOptions(tables=str(file))

    assert build_request(given, None) == asked
    assert build_request(replace(given, batch_size=64), "random").batch_size_per_device == 64
    with pytest.raises((CommandError, DocumentError), match=words):
        build_request(replace(given, **changes), None)


def test_a_counted_dense_part_is_of_one_batch_size(tmp_path: Path) -> None:
    """Another size takes what the part was counted of."""
    file = tmp_path / "request.json"
    file.write_text(request(table("a"), dense=counted_part(table("a"))).to_json())
    given = RequestOptions(tables=str(file))
    counted = build_request(given, None).batch_size_per_device

    assert build_request(replace(given, batch_size=counted), None) == build_request(given, None)
    with pytest.raises(
        CommandError, match=r"--batch-size: the dense part of .*request.json was .*; hint: give the job"
    ):
        build_request(replace(given, batch_size=counted + 1), None)


def test_another_kind_of_document_is_named(tmp_path: Path) -> None:
    """By its version."""
    file = tmp_path / "topology.json"
    file.write_text(build_topology(OPTIONS).to_json())

    with pytest.raises(DocumentError, match=r"topology.json: .* expected .table-set"):
        build_request(replace(OPTIONS, tables=str(file)), None)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["spec.planner.shardingTypes=TableWise,RowWise"], r"found .*; hint: write \[TableWise, RowWise\]"),
        (["spec.experimental.planner.seed=1", "spec.experimental.planner={}"], "planner.seed: excludes --set spec.exp"),
        (["spec.experimental.planner={}", "spec.experimental.planner.seed=1"], "planner.seed: excludes --set spec.exp"),
    ],
    ids=["list", "part-first", "whole-first"],
)
def test_a_setting_that_cannot_be_obeyed_says_what_to_write(texts: list[str], words: str) -> None:
    """Of two that set one field, none silently wins."""
    with pytest.raises((CommandError, DocumentError), match=words):
        build_request(replace(OPTIONS, set=parse_settings(texts)), None)

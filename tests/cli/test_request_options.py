import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.gradient_exchange import GradientChoices, GradientType
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Algorithm, Constraints
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.job_file import read_job_file
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.devices import build_topology
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import build_request, read_source
from neuroshard_planner.workload_store import read_workload
from support.builders import dense_profile

OPTIONS = RequestOptions(tables="mlperf-dlrm-dcnv2", devices=8, device_type="h100-80gb")


def test_the_table_sets_own_settings_are_the_defaults() -> None:
    """The benchmark trains 65,536 samples on all devices with row-wise Adagrad."""
    request = build_request(replace(OPTIONS, devices=16), Algorithm.NEUROSHARD)

    assert request.batch_size_per_device == 65536 // 16
    assert request.optimizer is Optimizer.ROWWISE_ADAGRAD


def test_a_batch_that_does_not_divide_is_rounded_up() -> None:
    """Planning for a little more is safe, for less is not."""
    request = build_request(replace(OPTIONS, devices=6, nodes=1), Algorithm.NEUROSHARD)

    assert request.batch_size_per_device == 10923


def test_options_win_over_the_table_set(tmp_path: Path) -> None:
    """Every option reaches its field of the request."""
    limits = tmp_path / "constraints.json"
    limits.write_text(json.dumps({"schema_version": Constraints.schema_name, "min_shard_width": 16}))
    request = build_request(
        replace(
            OPTIONS,
            batch_size=512,
            optimizer="adam",
            output_data_type="BF16",
            constraints=limits,
            max_memory="70GiB",
            dense_memory="2GiB",
            reserve=0.2,
            seed=7,
            work_budget=1000,
            shard_tolerance=0.0,
        ),
        Algorithm.DIM_GREEDY,
    )

    assert request.batch_size_per_device == 512
    assert request.optimizer == "adam"
    assert request.memory.output_data_type == "BF16"
    assert request.memory.dense_bytes == 2 * 2**30
    assert request.memory.reserve_fraction == 0.2
    assert request.constraints.min_shard_width == 16
    assert request.constraints.max_memory_bytes_per_device == 70 * 2**30
    assert (request.search.seed, request.search.work_budget, request.search.shard_tolerance) == (7, 1000, 0.0)
    assert request.algorithm is Algorithm.DIM_GREEDY


@pytest.mark.parametrize(
    ("devices", "nodes", "expected"), [(4, None, (1, 4)), (8, None, (1, 8)), (64, None, (8, 8)), (64, 4, (4, 16))]
)
def test_devices_fill_nodes_as_their_type_usually_does(
    devices: int, nodes: int | None, expected: tuple[int, int]
) -> None:
    """64 H100 stand in 8 nodes, unless --nodes says otherwise."""
    topology = build_topology(replace(OPTIONS, devices=devices, nodes=nodes))

    assert (topology.num_nodes, topology.devices_per_node) == expected


def test_a_topology_file_describes_any_device(tmp_path: Path) -> None:
    """It stands for the options --devices, --nodes and --device-type."""
    topology = build_topology(OPTIONS)
    path = tmp_path / "topology.json"
    path.write_text(topology.to_json())

    assert build_topology(RequestOptions(tables="", topology=path)) == topology


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": None}, "--devices and --device-type"),
        ({"device_type": None}, "--devices and --device-type"),
        ({"device_type": "h100"}, "--device-type: .*h100-80gb"),
        ({"devices": 9, "nodes": 2}, "--devices: 9 do not fill 2 equal nodes"),
        ({"devices": 17}, "--devices: 17 do not fill 3 equal nodes"),
        ({"topology": Path("t.json")}, "--topology"),
    ],
    ids=["no devices", "no type", "unknown type", "uneven", "default nodes", "two descriptions"],
)
def test_devices_described_badly_are_refused_by_the_options_name(changes: dict[str, object], words: str) -> None:
    """Too little, too much, or nothing that exists."""
    with pytest.raises(CommandError, match=words):
        build_topology(replace(OPTIONS, **changes))  # type: ignore[arg-type]


def test_types_of_gradients_are_permitted_by_a_list(tmp_path: Path) -> None:
    """In any case of letters, with the settings of their own; the least gain counts for them too."""
    counted = dense_profile(*read_workload("mlperf-dlrm-dcnv2").tables)
    (tmp_path / "dense.json").write_text(counted.to_json())
    given = replace(
        OPTIONS,
        tables="mlperf-dlrm-dcnv2",
        batch_size=counted.batch_size_per_device,
        dense=tmp_path / "dense.json",
        gradient_types="bf16, threshold",
        keep_percent=1.0,
        least_gain=1.0,
    )
    found = build_request(given, "neuroshard")

    assert found.gradient_choices == GradientChoices(
        types=(GradientType.BF16, GradientType.THRESHOLD), keep_percent=1.0, least_gain_percent=1.0
    )
    assert found.communication is None


def test_a_name_without_suffix_is_a_workload() -> None:
    """Files are distinguished by their suffix or folder."""
    assert read_source("mlperf-dlrm-dcnv2") == read_workload("mlperf-dlrm-dcnv2")
    with pytest.raises(DocumentError, match="does not exist"):
        read_source("mlperf-dlrm-dcnv2.yaml")


def test_types_on_the_wire_are_permitted_by_lists() -> None:
    """In any case of letters; without a list there is nothing to choose from."""
    given = replace(OPTIONS, tables="mlperf-dlrm-dcnv2", wire_forward="fp16, INT8", least_gain=5.0)
    found = build_request(given, "neuroshard").communication

    assert found is not None
    assert (found.forward, found.backward, found.least_gain_percent) == (("FP16", "INT8"), (), 5.0)
    assert build_request(replace(OPTIONS, tables="mlperf-dlrm-dcnv2"), "neuroshard").communication is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"wire_backward": "FP16,INT4"},
            "--wire-backward: 'INT4' is not a type on the wire; hint: use FP32, FP16, BF16",
        ),
        ({"least_gain": 1.0}, "--least-gain: no types are permitted"),
        (
            {"gradient_types": "BF16,INT8"},
            "--gradient-types: 'INT8' is not a type of gradients; hint: use FP32, FP16, BF16",
        ),
        ({"gradient_types": "BF16"}, "--gradient-types: are of a counted dense part"),
        ({"gradient_types": "BF16", "keep_percent": 1.0}, "--keep-percent: is for Threshold alone"),
    ],
)
def test_types_described_badly_are_refused_by_the_options_name(changes: dict[str, object], words: str) -> None:
    """A type that does not exist, or a gain of nothing."""
    with pytest.raises(CommandError, match=words):
        build_request(replace(OPTIONS, tables="mlperf-dlrm-dcnv2", **changes), "neuroshard")  # type: ignore[arg-type]


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


def test_a_job_in_json_is_planned_as_in_yaml(tmp_path: Path) -> None:
    """As `neuroshard run` leaves it in its folder."""
    (tmp_path / "job.json").write_text(read_job_file(JOB).job.to_json(), encoding="utf-8")

    found = build_request(replace(OPTIONS, tables=str(tmp_path / "job.json")), None)
    assert found == build_request(replace(OPTIONS, tables=str(JOB)), None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_memory": "70GiB"}, "--max-memory: .*02-movielens.yaml is a job, which says this itself; hint: set it"),
        ({"seed": 3}, "--seed: .* is a job"),
        ({"device_type": None}, "--device-type: is missing, and .* names none in spec.profiler.deviceType"),
    ],
)
def test_what_a_job_says_itself_is_no_option(changes: dict[str, Any], message: str) -> None:
    """An option would be dropped, or contradict what the operator plans."""
    with pytest.raises(CommandError, match=message):
        build_request(replace(OPTIONS, tables=str(JOB), **changes), None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 4}, "--devices: .*request.json already says what it answers; hint: leave it out"),
        ({"max_memory": "70GiB"}, "--max-memory: .*request.json already says"),
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


def test_another_kind_of_document_is_named(tmp_path: Path) -> None:
    """By its version."""
    file = tmp_path / "topology.json"
    file.write_text(build_topology(OPTIONS).to_json())

    with pytest.raises(DocumentError, match=r"topology.json: .* expected .table-set"):
        build_request(replace(OPTIONS, tables=str(file)), None)

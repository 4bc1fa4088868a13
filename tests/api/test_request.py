"""Plan requests, constraints and search settings."""

import json

import pytest
from hypothesis import given
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.request import Constraints, PlanRequest
from support.builders import data_with, device_type, request, table, topology
from support.depth import generated
from support.strategies import constraints, requests


@generated(20, 50)
@given(requests)
def test_any_request_survives_json(asked: PlanRequest) -> None:
    """Reading what was written gives an equal value."""
    assert PlanRequest.from_json(asked.to_json()) == asked


@generated(30, 100)
@given(constraints)
def test_any_constraints_survive_json(limits: Constraints) -> None:
    """Reading what was written gives an equal value."""
    assert Constraints.from_json(limits.to_json()) == limits


def test_the_global_batch_spans_all_devices() -> None:
    """Every shard serves the samples of all devices."""
    assert request(table(), num_devices=8, batch_size_per_device=1024).global_batch_size == 8192


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("batch_size_per_device", 0),
        ("optimizer", "momentum"),
        ("algorithm", "best"),
        ("memory.reserve_fraction", 1.0),
        ("memory.num_pipelined_batches", 0),
        ("search.seed", -1),
        ("search.work_budget", 0),
        ("search.shard_tolerance", -0.1),
        ("search.shard_tolerance", 1.1),
        ("memory.dense_bytes", 2**53 + 1),
        ("constraints.max_memory_bytes_per_device", 2**53 + 1),
        ("constraints.min_shard_width", 6),
        ("constraints.forbidden_devices", [-1]),
        ("constraints.max_shards_per_table", 0),
        ("constraints.tables", {"a": {"devices": []}}),
        ("constraints.tables", {"a": {"max_shard": 1}}),
        ("constraints.colocate", [[]]),
    ],
)
def test_a_bad_setting_is_refused_by_name(path: str, value: object) -> None:
    """The message begins with the setting's path."""
    with pytest.raises(DocumentError) as caught:
        PlanRequest.from_data(data_with(request(), path, value))

    assert str(caught.value).startswith(f"document: {path}")


def test_a_batch_of_more_samples_than_memory_can_be_counted_for_is_refused() -> None:
    """Devices and samples per device are possible each, their product is not."""
    data = data_with(request(topology=topology(8192, num_nodes=2)), "batch_size_per_device", 2**24)

    with pytest.raises(DocumentError, match=r"batch_size_per_device: 16,777,216 samples on each of 8,192 devices"):
        PlanRequest.from_data(data)


def test_pooled_embeddings_without_a_kernel_are_refused() -> None:
    """No device trains 8-bit outputs, so such a plan could never run."""
    with pytest.raises(DocumentError, match="no training kernel for pooled embeddings of type INT8 on any device"):
        PlanRequest.from_data(data_with(request(), "memory.output_data_type", "INT8"))


@pytest.mark.parametrize(
    ("path", "value", "on_cpu", "words"),
    [
        ("optimizer", "adam", True, "optimizer: FBGEMM has no training kernel with adam for tables on CPUs"),
        ("memory.output_data_type", "BF16", True, "no training kernel with BF16 for pooled embeddings on CPUs"),
        ("constraints.max_shard_width", 4096, False, r"constraints.max_shard_width: is 4,096.*at most 2,048 columns"),
    ],
)
def test_what_no_kernel_of_the_devices_trains_is_refused(path: str, value: object, on_cpu: bool, words: str) -> None:  # noqa: FBT001 - a case's own
    """Each value is trained by the other kind of device."""
    devices = [topology(2, device=device_type(name=name)) for name in ("cpu-8-cores", "any-gpu")]
    refusing, other = devices if on_cpu else reversed(devices)

    with pytest.raises(DocumentError, match=words):
        PlanRequest.from_data(data_with(request(topology=refusing), path, value))
    assert PlanRequest.from_data(data_with(request(topology=other), path, value))


def test_a_request_with_bad_tables_names_the_table() -> None:
    """A fault deep inside has its whole path."""
    data = data_with(request(), "tables.tables.2.embedding_dim", 10)

    with pytest.raises(DocumentError, match=r"tables\.tables\[2\]\.embedding_dim: must be a multiple of 4"):
        PlanRequest.from_data(data)


def test_a_request_of_an_earlier_build_is_read() -> None:
    """It names the width and the levels of the search's beam, at the only values that they have now."""
    data = json.loads(request(table()).to_json())
    data["search"] |= {"beam_width": 3, "max_levels": 10}

    assert PlanRequest.from_data(data, where="request") == request(table())
    data["search"]["beam_width"] = 4
    with pytest.raises(DocumentError, match="beam_width"):
        PlanRequest.from_data(data, where="request")

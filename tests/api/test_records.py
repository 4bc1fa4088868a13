"""Records of the profiler."""

from typing import Any

import pytest
from neuroshard_api.documents.records import CommunicationSample
from neuroshard_api.documents.topology import Link
from support.builders import profile_record, topology


def communication(**fields: Any) -> CommunicationSample:
    """Return an all-to-all over four devices of one node."""
    devices = topology(4)
    defaults = {
        "direction": "forward",
        "num_nodes": 1,
        "devices_per_node": 4,
        "intra_node": devices.intra_node,
        "inter_node": devices.inter_node,
        "batch_size_per_device": 1024,
        "bytes_per_element": 4,
        "embedding_dim_sums": (64, 64, 0, 128),
    }
    return CommunicationSample(**{**defaults, **fields})


def test_a_communication_record_survives_json() -> None:
    """Reading what was written gives an equal value."""
    record = profile_record(compute=None, communication=communication(), device_ms=(1.0, 1.0, 0.5, 2.0))

    assert type(record).from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("fields", "found"),
    [({"compute": None}, "none"), ({"communication": communication()}, "compute and communication")],
    ids=["none", "two"],
)
def test_a_record_holds_one_sample(fields: dict[str, Any], found: str) -> None:
    """A record is of one kernel or collective, of copies, or of tables that are called in several ways."""
    with pytest.raises(
        ValueError,
        match="exactly one of compute, communication, launch, expansion, codec, matrix, reduction, collections, "
        f"found {found}",
    ):
        profile_record(**fields)


@pytest.mark.parametrize(("field", "values"), [("embedding_dim_sums", (64, 64)), ("start_offsets_ms", (0.0, 1.0, 2.0))])
def test_a_collective_has_one_entry_per_device(field: str, values: tuple[float, ...]) -> None:
    """A value for a device that is not there is a mistake."""
    message = rf"{field}: must have one entry for each of the 4 devices, found {len(values)}"

    with pytest.raises(ValueError, match=message):
        communication(**{field: values})


def test_devices_may_start_together() -> None:
    """No start offsets mean that all enter at once."""
    assert communication(start_offsets_ms=()).start_offsets_ms == ()


def test_a_link_that_the_exchange_passes_over_is_given() -> None:
    """The other level's link stays empty instead of holding a number that nobody measured."""
    link = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)
    sample: dict[str, Any] = {
        "direction": "forward",
        "num_nodes": 2,
        "devices_per_node": 1,
        "batch_size_per_device": 8,
        "bytes_per_element": 4,
        "embedding_dim_sums": (4, 8),
    }

    assert CommunicationSample(**sample, inter_node=link).intra_node is None
    with pytest.raises(ValueError, match="inter_node: must be given, since the exchange passes over it"):
        CommunicationSample(**sample, intra_node=link)

"""Builders of profile records."""

from pathlib import Path
from typing import Any

from neuroshard_api.documents.records import CommunicationSample, ComputeSample, ProfileRecord, ReductionSample
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import Link
from support.builders import table

SOURCE = "measured:Other Device"


def compute_record(*, forward_ms: float = 1.0, backward_ms: float = 2.0, **fields: Any) -> ProfileRecord:
    """Return a measured call over one table of the given fields, served 65,536 samples."""
    return ProfileRecord(
        source=SOURCE,
        compute=ComputeSample(tables=(table(**fields),), batch_size=65536, optimizer=Optimizer.SGD),
        forward_ms=forward_ms,
        backward_ms=backward_ms,
    )


def communication_record(*, device_ms: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0), **fields: Any) -> ProfileRecord:
    """Return a measured forward all-to-all of one node of four devices, but for the given fields."""
    sample = {
        "direction": "forward",
        "num_nodes": 1,
        "devices_per_node": 4,
        "intra_node": Link(bandwidth_bytes_per_second=4e11, latency_seconds=1e-6),
        "inter_node": Link(bandwidth_bytes_per_second=5e10, latency_seconds=1e-5),
        "batch_size_per_device": 1024,
        "bytes_per_element": 4,
        "embedding_dim_sums": (64, 64, 64, 128),
        **fields,
    }
    return ProfileRecord(source=SOURCE, communication=CommunicationSample(**sample), device_ms=device_ms)


def reduction_record(num_bytes: int, time_ms: float, **fields: Any) -> ProfileRecord:
    """Return a measured all-gather of one node of two devices, the second of which is slower, but for the fields."""
    sample = {
        "kind": "all_gather",
        "num_nodes": 1,
        "devices_per_node": 2,
        "intra_node": Link(bandwidth_bytes_per_second=4e11, latency_seconds=1e-6),
        "num_bytes": num_bytes,
        **fields,
    }
    return ProfileRecord(source=SOURCE, reduction=ReductionSample(**sample), device_ms=(0.9 * time_ms, time_ms))


def written(folder: Path, *records: ProfileRecord) -> Path:
    """Write records as JSON lines and return the file."""
    path = folder / "records.jsonl"
    path.write_text("".join(record.model_dump_json(exclude_none=True) + "\n" for record in records), encoding="utf-8")
    return path

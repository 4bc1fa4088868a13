"""Specification of records files."""

import json
from pathlib import Path
from typing import Any

import pytest
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.fitting.records import ended_records, read_records
from support.profiler.record_builders import communication_record, compute_record, reduction_record, written

LAUNCH = json.loads(compute_record().to_json())["compute"]
COLLECTIONS = {"batch_size_per_device": 64, "num_tables": 8, "embedding_dim": 8, "pooling_factor": 1}
EXPANSION = {"batch_size": 64, "num_features": 2, "embedding_dim": 8, "factor": 4}


def test_records_come_in_the_order_of_the_lines(tmp_path: Path) -> None:
    """Empty lines separate nothing; a sample without memory is not a measurement."""
    failed = compute_record().model_copy(update={"out_of_memory": True, "forward_ms": None, "backward_ms": None})
    path = written(tmp_path, compute_record(), failed, communication_record())
    path.write_text(path.read_text(encoding="utf-8").replace("\n", "\n\n"), encoding="utf-8")

    assert read_records(path) == (compute_record(), communication_record())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": "profile-record/v9"}, "line 1: schema_version"),
        ({"forward_ms": None}, "line 1: forward_ms and backward_ms must be given"),
        ({"forward_ms": -1.0}, "line 1: forward_ms"),
        ({"compute": None}, "line 1: must hold exactly one of compute, communication, launch, expansion"),
        ({"compute": None, "launch": LAUNCH}, "line 1: launch_times must be given with launch"),
        ({"compute": None, "forward_ms": None, "expansion": EXPANSION}, "must be given with expansion"),
        (
            {"compute": None, "expansion": EXPANSION, "method": 2},
            r"line 1: method: must be at least 3 with expansion \(found 2\)",
        ),
        ({"compute": None, "collections": COLLECTIONS}, "line 1: collection_times must be given with collections"),
        ({"sauce": 1}, "line 1: sauce: is not a known key"),
        ({"source": "guessed"}, "line 1: source"),
    ],
)
def test_a_broken_record_is_named_by_line_and_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """The message says where and what to do."""
    raw = json.loads(compute_record().to_json()) | change
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}), encoding="utf-8")

    with pytest.raises(RecordsError, match=f"(?s){message}.*measure again"):
        read_records(path)


def test_every_device_of_a_collective_has_a_time(tmp_path: Path) -> None:
    """Four devices have four times."""
    with pytest.raises(RecordsError, match="device_ms: must have one entry for each of the 4 devices, found 1"):
        read_records(written(tmp_path, communication_record(device_ms=(1.0,))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device_ms": (1.0,)}, "line 1: device_ms: must have one entry for each of the 2 devices, found 1"),
        ({"device_ms": (0.0, 1.0)}, r"line 1: device_ms: must be above 0 and at most 1e\+09 \(found 0\)"),
        ({"reduction": {"kind": "broadcast"}}, "line 1: reduction.kind"),
        ({"reduction": {"intra_node": None}}, "line 1: reduction.*intra_node: must be given"),
        ({"device_ms": (1.0, 1e300)}, r"line 1: device_ms: must be above 0 and at most 1e\+09 \(found 1e\+300\)"),
        ({"reduction": {"devices_per_node": 1}}, "line 1: reduction.*num_nodes: must be 2 or more"),
        ({"reduction": {"num_bytes": 0}}, "line 1: reduction.num_bytes"),
    ],
)
def test_a_broken_record_of_a_reduction_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """The message says which field, and what to do."""
    raw = json.loads(reduction_record(4096, 1.0).to_json())
    change = {**change, "reduction": raw["reduction"] | change.get("reduction", {})}
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(raw | change), encoding="utf-8")

    with pytest.raises(RecordsError, match=f"(?s){message}.*measure again"):
        read_records(path)


def test_a_last_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    """A profiler that was killed leaves half a line; the records before it hold."""
    path = written(tmp_path, compute_record())
    text = path.read_text(encoding="utf-8")
    path.write_text(text + text[:100], encoding="utf-8")

    assert read_records(path) == (compute_record(),)


def test_a_last_line_without_its_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    """Editors leave the last newline out."""
    path = written(tmp_path, compute_record(), compute_record())
    path.write_text(path.read_text(encoding="utf-8").rstrip("\n"), encoding="utf-8")

    assert len(read_records(path)) == 2


def test_a_cut_line_before_others_is_named(tmp_path: Path) -> None:
    """Half a line that others follow was not left by a profiler that was killed."""
    path = written(tmp_path, compute_record())
    text = path.read_text(encoding="utf-8")
    path.write_text(text + text[:100] + "\n" + text, encoding="utf-8")

    with pytest.raises(RecordsError, match="line 2: is not complete JSON"):
        read_records(path)


def test_ended_records_end_where_the_next_one_is_written(tmp_path: Path) -> None:
    """A profiler that goes on removes what follows the last ended line, and keeps samples that had no memory."""
    failed = compute_record().model_copy(update={"out_of_memory": True, "forward_ms": None, "backward_ms": None})
    path = written(tmp_path, compute_record(), failed)
    whole = path.stat().st_size
    path.write_text(path.read_text(encoding="utf-8") + "{", encoding="utf-8")

    assert ended_records(path) == ((compute_record(), failed), whole)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """Neither garbage nor a missing file is a records file."""
    (tmp_path / "garbage").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(RecordsError, match="is not text in UTF-8"):
        read_records(tmp_path / "garbage")
    with pytest.raises(RecordsError, match="cannot be read"):
        read_records(tmp_path / "nowhere")

"""Files of profile records, one JSON document per line. Reads them; measures and judges nothing.

A profiler that is killed leaves a last line without its end. Such a line is not a record yet and is passed over; a
broken line anywhere else is an error.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_api.process.hints import without_hint

from neuroshard_costs.errors import RecordsError

GROUP_COPIES_METHOD = 3
"""First measuring method in which the copies of an expansion are those of a whole group. Before, gradients were summed
feature by feature, and a row cost as many times as much."""
_MEASURE_AGAIN = "measure again, or remove the line"


def read_records(path: Path) -> tuple[ProfileRecord, ...]:
    """Read a JSON lines file; empty lines and records without times are left out.

    Raises RecordsError that names file, line and field for anything else that is not a complete record.
    """
    lines, rest = _lines(path)
    if rest.strip() and not (lines and _is_cut(rest)):
        lines.append(rest)
    return tuple(record for record in _records(path, lines) if record.is_usable)


def ended_records(path: Path) -> tuple[tuple[ProfileRecord, ...], int]:
    """Read the lines that are ended, also those without times; return how many bytes they fill.

    Raises RecordsError as read_records does.
    """
    lines, _ = _lines(path)
    return _records(path, lines), sum(len(line) + 1 for line in lines)


def _lines(path: Path) -> tuple[list[bytes], bytes]:
    """Return the ended lines, and what follows the last of them."""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read ({error.strerror}); hint: check the path") from error
    return lines, rest


def _is_cut(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _records(path: Path, lines: Sequence[bytes]) -> tuple[ProfileRecord, ...]:
    return tuple(
        _record(line, where=f"{path}: line {number}") for number, line in enumerate(lines, start=1) if line.strip()
    )


def _record(line: bytes, *, where: str) -> ProfileRecord:
    try:
        record = ProfileRecord.from_json(line, where=where)
    except DocumentError as error:
        raise RecordsError(f"{without_hint(str(error))}; hint: {_MEASURE_AGAIN}") from error
    if not record.is_usable:
        return record
    for kind in ("compute", "expansion", "codec", "matrix"):
        if getattr(record, kind) is not None and (record.forward_ms is None or record.backward_ms is None):
            raise RecordsError(f"{where}: forward_ms and backward_ms must be given with {kind}; hint: {_MEASURE_AGAIN}")
    if record.expansion is not None and record.method < GROUP_COPIES_METHOD:
        raise RecordsError(
            f"{where}: method: must be at least {GROUP_COPIES_METHOD} with expansion (found {record.method}), since "
            f"earlier ones sum gradients feature by feature; hint: {_MEASURE_AGAIN}"
        )
    if record.launch is not None and record.launch_times is None:
        raise RecordsError(f"{where}: launch_times must be given with launch; hint: {_MEASURE_AGAIN}")
    if record.collections is not None and record.collection_times is None:
        raise RecordsError(f"{where}: collection_times must be given with collections; hint: {_MEASURE_AGAIN}")
    sample = record.communication
    if sample is not None and len(record.device_ms) != sample.num_devices:
        raise RecordsError(
            f"{where}: device_ms: must have one entry for each of the {sample.num_devices} devices, "
            f"found {len(record.device_ms)}; hint: {_MEASURE_AGAIN}"
        )
    return record

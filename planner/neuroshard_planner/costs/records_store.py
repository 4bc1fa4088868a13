"""Files of profile records, one JSON document per line. Reads them; measures and judges nothing."""

from pathlib import Path

from neuroshard_api.document import DocumentError
from neuroshard_api.records import ProfileRecord

from neuroshard_planner.errors import RecordsError

_MEASURE_AGAIN = "measure again, or remove the line"


def read_records(path: Path) -> tuple[ProfileRecord, ...]:
    """Read a JSON lines file; empty lines and records of samples that ran out of memory are left out.

    Raises RecordsError that names file, line and field for anything else that is not a complete record.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise RecordsError(f"{path}: is not text in UTF-8; expected one JSON record per line") from error
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    records = [
        _record(line, where=f"{path}: line {number}") for number, line in enumerate(lines, start=1) if line.strip()
    ]
    return tuple(record for record in records if not record.out_of_memory)


def _record(line: str, *, where: str) -> ProfileRecord:
    try:
        record = ProfileRecord.from_json(line, where=where)
    except DocumentError as error:
        raise RecordsError(f"{error}; {_MEASURE_AGAIN}") from error
    if record.out_of_memory:
        return record
    if record.compute is not None and (record.forward_ms is None or record.backward_ms is None):
        raise RecordsError(f"{where}: forward_ms and backward_ms must be given with compute; {_MEASURE_AGAIN}")
    sample = record.communication
    if sample is not None and len(record.device_ms) != len(sample.embedding_dim_sums):
        raise RecordsError(
            f"{where}: device_ms: must have one entry for each of the {len(sample.embedding_dim_sums)} devices, "
            f"found {len(record.device_ms)}; {_MEASURE_AGAIN}"
        )
    return record

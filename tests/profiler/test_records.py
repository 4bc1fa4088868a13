"""Specification of records files that grow."""

from pathlib import Path

import pytest
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.fitting.records import read_records
from neuroshard_profiler.errors import DeviceFailedError, DeviceLostError
from neuroshard_profiler.records import METHOD, RecordsFile
from support.profiler.record_builders import SOURCE, compute_record, written


def test_a_record_is_written_before_the_next_is_measured(tmp_path: Path) -> None:
    """What reads the file while it grows sees whole records."""
    path = tmp_path / "new" / "records.jsonl"
    with RecordsFile(path, source=SOURCE) as file:
        file.append(compute_record())

        own = compute_record().model_copy(update={"method": METHOD})
        assert read_records(path) == (own,)
        assert file.records == (own,)


def test_an_earlier_file_is_gone_on_with(tmp_path: Path) -> None:
    """A line that a killed process left half written goes, whole ones stay."""
    path = tmp_path / "records.jsonl"
    with RecordsFile(path, source=SOURCE) as file:
        file.append(compute_record(forward_ms=1.0))
    with path.open("a", encoding="utf-8") as text:
        text.write('{"schema_version": "profile-rec')
    with RecordsFile(path, source=SOURCE) as file:
        file.append(compute_record(forward_ms=2.0))

    assert [record.forward_ms for record in read_records(path)] == [1.0, 2.0]


def test_a_broken_line_elsewhere_is_an_error(tmp_path: Path) -> None:
    """Nothing of the profiler leaves one, so someone must look."""
    path = tmp_path / "records.jsonl"
    with RecordsFile(path, source=SOURCE) as file:
        file.append(compute_record())
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + "oops\n" + whole, encoding="utf-8")

    with pytest.raises(RecordsError, match="line 2: is not complete JSON"):
        RecordsFile(path, source=SOURCE)


def test_records_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    """A folder that was copied from another machine is refused."""
    path = tmp_path / "records.jsonl"
    with RecordsFile(path, source=SOURCE) as file:
        file.append(compute_record())

    with pytest.raises(
        RecordsError, match=f"holds records of {SOURCE}, this machine's are cpu:Mine; hint: give another"
    ):
        RecordsFile(path, source="cpu:Mine")


def test_records_of_another_way_of_measuring_are_not_continued(tmp_path: Path) -> None:
    """Those of an earlier release have no version, and their times do not compare."""
    path = written(tmp_path, compute_record())

    with pytest.raises(
        RecordsError, match=f"holds records of measuring method 1, this release measures by .* {METHOD}"
    ):
        RecordsFile(path, source=SOURCE)


def test_a_sample_that_takes_the_device_with_it_is_recorded_and_ends_the_measuring(tmp_path: Path) -> None:
    """Later samples are not blamed for it: the next run goes on after this one."""
    path = tmp_path / "records.jsonl"
    record = compute_record().model_copy(update={"forward_ms": None, "backward_ms": None})
    with (
        RecordsFile(path, source=SOURCE) as file,
        pytest.raises(DeviceFailedError, match="illegal memory access; hint: run the same command again"),
        file.appended(record),
    ):
        raise DeviceLostError("illegal memory access")

    assert [each.failure for each in file.records] == ["illegal memory access"]

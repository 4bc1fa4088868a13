"""Specification of collecting compute records."""

from dataclasses import replace
from pathlib import Path

from builders import table_set
from neuroshard_api.tables import DataType, Optimizer
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.compute_bench import collect_compute
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.sampling import CPU_SPACE
from profiler_builders import MadeUpBackend

SPACE = replace(CPU_SPACE, optimizers=(Optimizer.SGD,), data_types=(DataType.FP32,), job=table_set())


def collected(path: Path, backend: MadeUpBackend, *, max_records: int) -> RecordsFile:
    """Collect up to so many records and return the closed file."""
    with RecordsFile(path, source=backend.source) as file:
        collect_compute(backend, SPACE, file, budget=Budget(seconds=1e9, max_records=max_records, clock=lambda: 7.0))
    return file


def test_a_run_in_two_parts_equals_one_run(tmp_path: Path) -> None:
    """The sample of each line follows from the seed and the line's number alone."""
    collected(tmp_path / "whole", MadeUpBackend(), max_records=8)
    collected(tmp_path / "parts", MadeUpBackend(), max_records=3)
    collected(tmp_path / "parts", MadeUpBackend(), max_records=8)

    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_sample_without_memory_is_a_record_and_no_end(tmp_path: Path) -> None:
    """It is told that it did not fit, and the run goes on."""
    file = collected(tmp_path / "records", MadeUpBackend(most_tables=3), max_records=20)
    failed = [record for record in file.records if record.out_of_memory]

    assert len(file.records) == 20
    assert 0 < len(failed) < 20
    assert {record.forward_ms for record in failed} == {None}
    assert all(record.compute is not None and len(record.compute.tables) > 3 for record in failed)


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    """Source, environment, repeats and spread stand in every record."""
    (record,) = collected(tmp_path / "records", MadeUpBackend(), max_records=1).records

    assert (record.source, record.environment, record.num_repeats) == ("cpu:Made Up", {"library": "1.0"}, 5)


def test_time_ends_a_run(tmp_path: Path) -> None:
    """A budget that is spent measures nothing."""
    backend = MadeUpBackend()
    with RecordsFile(tmp_path / "records", source=backend.source) as file:
        collect_compute(backend, SPACE, file, budget=Budget(seconds=0.0))

    assert file.records == ()

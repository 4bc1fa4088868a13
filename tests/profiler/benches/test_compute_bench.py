"""Specification of collecting compute records."""

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_costs.fitting.records import ended_records, read_records
from neuroshard_profiler.benches.compute import MAX_FAILURES_IN_A_ROW, collect_compute
from neuroshard_profiler.benches.sampling import CPU_SPACE
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.errors import DeviceFailedError, DeviceLostError, KernelError, MeasureError
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.settings import MeasuringProcess
from neuroshard_profiler.times import Repeats, Times
from support.builders import table_set
from support.profiler.profiler_builders import MadeUpBackend

SPACE = replace(CPU_SPACE, optimizers=(Optimizer.SGD,), data_types=(DataType.FP32,), job=table_set())


def collected(path: Path, backend: MadeUpBackend, *, max_records: int) -> RecordsFile:
    """Collect up to that many records and return the closed file."""
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
    """It gets the error that it did not fit, and the run goes on."""
    file = collected(tmp_path / "records", MadeUpBackend(most_tables=3), max_records=20)
    failed = [record for record in file.records if record.out_of_memory]

    assert len(file.records) == 20
    assert 0 < len(failed) < 20
    assert {record.forward_ms for record in failed} == {None}
    assert all(record.compute is not None and len(record.compute.tables) > 3 for record in failed)


def test_a_kernel_that_fails_ends_its_sample_only(tmp_path: Path) -> None:
    """The reason is in the record, and every other sample is what it would have been."""
    failing = {2: KernelError("not implemented for emb_t BFloat16")}
    file = collected(tmp_path / "failing", MadeUpBackend(failures=failing), max_records=6)
    whole = collected(tmp_path / "whole", MadeUpBackend(), max_records=6)

    assert [record.failure for record in file.records] == [None, None, str(failing[2]), None, None, None]
    assert file.records[2].forward_ms is None
    assert file.records[:2] + file.records[3:] == whole.records[:2] + whole.records[3:]
    assert read_records(tmp_path / "failing") == file.records[:2] + file.records[3:]


def test_a_lost_device_ends_the_process_and_the_next_one_resumes(tmp_path: Path) -> None:
    """CUDA repeats such an error at every later call, so the sample is recorded before the process ends."""
    lost = MadeUpBackend(failures={1: DeviceLostError("CUDA error: an illegal memory access was encountered")})
    path = tmp_path / "records"

    with pytest.raises(DeviceFailedError, match="illegal memory access") as caught:
        collected(path, lost, max_records=4)
    assert "hint: run the same command again; it resumes after this sample" in str(caught.value)
    assert len(collected(path, MadeUpBackend(), max_records=4).records) == 4
    assert [record.failure is None for record in ended_records(path)[0]] == [True, False, True, True]


def test_no_error_of_a_sample_is_alive_while_the_next_one_is_measured(tmp_path: Path) -> None:
    """Its traceback would hold the sample's tables."""
    alive: list[weakref.ref[KernelError]] = []
    found: list[bool] = []

    class Watched(MadeUpBackend):
        def measure(self, sample: ComputeSample, *, seed: int, repeats: Repeats) -> Times:
            found.extend(each() is not None for each in alive)
            if not alive:
                error = KernelError("no times")
                alive.append(weakref.ref(error))
                try:
                    raise error
                finally:
                    del error
            return super().measure(sample, seed=seed, repeats=repeats)

    collected(tmp_path / "records", Watched(), max_records=3)

    assert found == [False, False]


def test_a_device_on_which_everything_fails_is_an_error(tmp_path: Path) -> None:
    """A budget is not spent on failures, over several runs neither."""
    failures = {index: KernelError("no kernel image is available") for index in range(1, 100)}
    path = tmp_path / "records"

    collected(path, MadeUpBackend(failures=failures), max_records=MAX_FAILURES_IN_A_ROW)
    with pytest.raises(MeasureError, match=r"20 samples in a row failed; the last one with: no kernel image"):
        collected(path, MadeUpBackend(failures=failures), max_records=100)
    assert len(ended_records(path)[0]) == 1 + MAX_FAILURES_IN_A_ROW


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


def test_parts_measure_together_what_one_process_would(tmp_path: Path) -> None:
    """Each of two processes takes every second sample."""
    whole = collected(tmp_path / "whole", MadeUpBackend(), max_records=6).records
    parts = []
    for index in range(2):
        with RecordsFile(tmp_path / f"{index}", source=MadeUpBackend().source) as file:
            budget = Budget(seconds=1e9, max_records=3, clock=lambda: 7.0)
            collect_compute(MadeUpBackend(), SPACE, file, budget=budget, part=MeasuringProcess(index=index, count=2))
        parts.append(file.records)

    assert [parts[0][0], parts[1][0], parts[0][1], parts[1][1], parts[0][2], parts[1][2]] == list(whole)

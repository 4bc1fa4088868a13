"""Measures fused embedding calls on sampled table sets, one record each, until the budget is spent."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from neuroshard_api.documents.records import ComputeSample, ProfileRecord

from neuroshard_profiler.backends.base import Backend
from neuroshard_profiler.benches.sampling import SampleSpace, draw_compute_sample
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.errors import (
    DeviceFailedError,
    DeviceLostError,
    MeasureError,
    OutOfDeviceMemoryError,
    UnusableSampleError,
)
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.settings import MeasuringProcess
from neuroshard_profiler.times import Repeats, Times

_COMPUTE_STREAM = 0
_WHOLE = MeasuringProcess()
MAX_FAILURES_IN_A_ROW = 20
"""Samples differ widely: when that many fail one after the other, the device or its software is at fault."""


def collect_compute(
    backend: Backend,
    space: SampleSpace,
    file: RecordsFile,
    *,
    budget: Budget,
    part: MeasuringProcess = _WHOLE,
    seed: int = 0,
    repeats: Repeats | None = None,
    on_record: Callable[[int], None] = lambda _: None,
) -> None:
    """Append records to the file until the budget is spent.

    The sample of each line follows from the seed and the line's number alone, so a run that goes on after a stop
    measures what one without a stop would have.

    Args:
        backend: times the samples.
        space: what they are drawn from.
        file: is appended to; it may hold records already.
        budget: of time and records; the file's earlier records count.
        part: measures every n-th sample.
        seed: of the samples and of the rows they look up.
        repeats: of each call. None: the backend's.
        on_record: called after each record with how many there are.

    Raises:
        DeviceFailedError: the device is lost to this process; the sample is recorded, so that another one goes on.
        MeasureError: MAX_FAILURES_IN_A_ROW samples failed one after the other.
    """
    for sample, number in compute_samples(space, seed=seed, part=part, first=len(file.records)):
        if budget.is_spent(len(file.records)):
            return
        record, lost = _measured(backend, sample, seed=number, repeats=repeats or backend.repeats)
        file.append(record.model_copy(update={"elapsed_seconds": budget.elapsed_seconds}))
        on_record(len(file.records))
        _require_some_success(file)
        if lost:
            raise DeviceFailedError(backend.source, record.failure or "")


def compute_samples(
    space: SampleSpace, *, seed: int = 0, part: MeasuringProcess = _WHOLE, first: int = 0
) -> Iterator[tuple[ComputeSample, int]]:
    """Yield the samples of a part without end, from its line ``first`` on, each with the seed of its rows."""
    for line in itertools.count(first):
        number = part.index + part.count * line
        yield draw_compute_sample(space, np.random.default_rng([seed, _COMPUTE_STREAM, number])), number


def _require_some_success(file: RecordsFile) -> None:
    """Raise MeasureError if the newest records are all failures, those of earlier runs included."""
    newest = file.records[-MAX_FAILURES_IN_A_ROW:]
    if len(newest) == MAX_FAILURES_IN_A_ROW and all(record.failure is not None for record in newest):
        raise MeasureError(
            f"{MAX_FAILURES_IN_A_ROW} samples in a row failed; the last one with: {newest[-1].failure}"
            f"; hint: check that torch and FBGEMM are built for this device and driver, and delete {file.path}"
        )


def _measured(backend: Backend, sample: ComputeSample, *, seed: int, repeats: Repeats) -> tuple[ProfileRecord, bool]:
    """Return the record of a sample, and whether the device is lost with it. No error outlives this call."""
    try:
        times = backend.measure(sample, seed=seed, repeats=repeats)
    except UnusableSampleError as error:
        out_of_memory = isinstance(error, OutOfDeviceMemoryError)
        record = ProfileRecord(
            source=backend.source,
            compute=sample,
            out_of_memory=out_of_memory,
            failure=None if out_of_memory else str(error) or type(error).__name__,
            environment=backend.environment,
        )
        return record, isinstance(error, DeviceLostError)
    return measured_record(backend, sample, times), False


def measured_record(backend: Backend, sample: ComputeSample, times: Times) -> ProfileRecord:
    """Return the record of a sample's times on a backend."""
    return ProfileRecord(
        source=backend.source,
        compute=sample,
        forward_ms=times.forward_ms,
        backward_ms=times.backward_ms,
        spread=times.spread,
        num_repeats=times.num_repeats,
        disturbance=times.disturbance,
        environment={**backend.environment, **times.conditions},
    )
